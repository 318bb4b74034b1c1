"""A fake router process."""

from services.fake import run

run("router")
