"""A fake gateway process."""

from services.fake import run

run("gateway")
