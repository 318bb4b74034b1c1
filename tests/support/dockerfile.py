"""A Dockerfile read as far as tests of it need: stages, their instructions, what COPY finds."""

import fnmatch
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continued lines joined."""

    word: str
    value: str


@dataclass
class Stage:
    """What stands from one FROM to the next."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def values(self, word: str) -> list[str]:
        return [each.value for each in self.instructions if each.word == word]


class Dockerfile:
    """The stages of a Dockerfile, by name."""

    def __init__(self, path: Path) -> None:
        self.stages: dict[str, Stage] = {}
        self.globals: list[Instruction] = []
        stage = None
        for each in _instructions(path.read_text()):
            if each.word == "FROM":
                base, _, name = each.value.partition(" AS ")
                stage = self.stages[name] = Stage(base, name)
            elif stage is None:
                self.globals.append(each)
            else:
                stage.instructions.append(each)

    def lineage(self, name: str) -> list[Stage]:
        """The stage and those that it is made from, the first one first."""
        stage = self.stages[name]
        earlier = self.lineage(stage.base) if stage.base in self.stages else []
        return [*earlier, stage]

    def steps(self, name: str) -> list[Instruction]:
        """All that is done on the way to a stage, in order."""
        return [each for stage in self.lineage(name) for each in stage.instructions]


def environment(steps: list[Instruction]) -> dict[str, str]:
    """What ENV and ARG set; an ARG has its default."""
    found: dict[str, str] = {}
    for step in steps:
        if step.word in ("ENV", "ARG"):
            for part in shlex.split(step.value):
                name, _, value = part.partition("=")
                found[name] = value
    return found


def copy(step: Instruction, context: Path, patterns: list[str], target: Path) -> None:
    """Does a COPY from the build's context, less what .dockerignore leaves out."""
    *sources, _ = step.value.split()
    for source in sources:
        for file in _kept(context / source, context, patterns):
            place = target / file.relative_to(context)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _kept(path: Path, context: Path, patterns: list[str]) -> Iterator[Path]:
    """Files at or below `path`; nothing that is left out is kept for what is below it."""
    if path != context and ignored(path.relative_to(context), patterns):
        return
    if path.is_file():
        yield path
    elif path.is_dir():
        for each in path.iterdir():
            yield from _kept(each, context, patterns)


def ignored(path: Path, patterns: list[str]) -> bool:
    """Whether .dockerignore leaves a file out: the last pattern that fits it, or a folder above
    it, decides."""
    result = False
    for pattern in patterns:
        keeps = pattern.startswith("!")
        if any(_fits(part, pattern.removeprefix("!")) for part in (path, *path.parents)):
            result = not keeps
    return result


def ignore_patterns(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _fits(path: Path, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatch(path.name, pattern.removeprefix("**/"))
    return path != Path() and path.match(pattern) and len(path.parts) == len(Path(pattern).parts)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, value = line.strip().partition(" ")
        if word:
            yield Instruction(word, value.strip())
