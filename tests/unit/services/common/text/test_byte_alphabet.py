from tokenizers import pre_tokenizers

from services.common.text import byte_alphabet


def test_it_is_the_alphabet_of_byte_level_tokenizers():
    assert sorted(byte_alphabet.BYTE_OF) == sorted(pre_tokenizers.ByteLevel.alphabet())


def test_spelling_is_that_of_byte_level_tokenizers():
    text = "".join(map(chr, range(0x250))) + "你好🙂\ue000"
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    [(spelled, _)] = pre_tokenizer.pre_tokenize_str(text)
    assert byte_alphabet.spell(text) == spelled
    assert byte_alphabet.read(spelled) == text.encode()


def test_a_piece_with_other_characters_is_its_own_text():
    assert byte_alphabet.read("<\uff5cend>") == "<\uff5cend>".encode()
