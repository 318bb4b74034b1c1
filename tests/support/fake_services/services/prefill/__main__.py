"""A fake prefill process."""

from services.fake import run

run("prefill")
