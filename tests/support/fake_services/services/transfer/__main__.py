"""A fake transfer process."""

from services.fake import run

run("transfer")
