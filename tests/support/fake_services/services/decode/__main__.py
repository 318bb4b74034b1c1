"""A fake decode process."""

from services.fake import run

run("decode")
