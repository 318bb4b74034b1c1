"""The alphabet in which byte-level tokenizers write bytes: one printable character for each.

Printable ASCII and Latin-1 characters stand for themselves; the other 68 bytes take the code
points from 256 on, in order. (GPT-2's convention, which every byte-level BPE follows.)
"""

_THEMSELVES = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _THEMSELVES)

CHARACTER_OF: dict[int, str] = {byte: chr(byte) for byte in _THEMSELVES} | {
    byte: chr(256 + place) for place, byte in enumerate(_OTHERS)
}
BYTE_OF: dict[str, int] = {character: byte for byte, character in CHARACTER_OF.items()}
_OUTSIDE = chr(256)
_TO_LATIN_1 = dict.fromkeys(range(256), _OUTSIDE) | {
    ord(character): chr(byte) for character, byte in BYTE_OF.items()
}


def spell(text: str) -> str:
    """The bytes of `text`, written in the alphabet."""
    return "".join(CHARACTER_OF[byte] for byte in text.encode("utf-8"))


def read(piece: str) -> bytes:
    """The bytes that `piece` writes; where it has a character of no byte, its own UTF-8."""
    try:
        return piece.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8")
