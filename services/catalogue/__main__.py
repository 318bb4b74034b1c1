"""`python -m services.catalogue`: writes what is generated from the declarations of metrics."""

import json
from pathlib import Path

from services.catalogue.dashboards import DASHBOARDS
from services.catalogue.document import document

ROOT = Path(__file__).parents[2]


def generated() -> dict[Path, str]:
    """The content of each file, by its path in the repository."""
    files = {Path("docs/metrics.md"): document()}
    for dashboard in DASHBOARDS:
        text = json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"
        files[Path("dashboards", f"{dashboard.name}.json")] = text
    return files


def main() -> None:
    """Writes them all."""
    for path, text in generated().items():
        target = ROOT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
