"""A fake planner process."""

from services.fake import run

run("planner")
