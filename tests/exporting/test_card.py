"""Model cards: what they begin with, whose they are, and which licence they keep."""

from pathlib import Path

from ien.exporting.card import card_text, is_our_card, licence_in, write_card


def test_a_card_begins_with_what_model_hubs_read_and_has_every_section() -> None:
    text = card_text("A net", "mit", {"Data": "Ten images.", "Costs": "None."})
    head, body = text.split("---\n")[1:]
    assert "license: mit\n" in head and "library_name: ien\n" in head
    assert (
        body.index("# A net\n") < body.index("## Data\n\nTen images.\n") < body.index("## Costs\n\nNone.\n")
    )
    assert body.rstrip().endswith("as whoever exported the model says.")
    assert "Before you publish" in card_text("A net", "unknown", {})


def test_a_card_of_ours_may_be_replaced_and_keeps_its_licence_and_others_not(tmp_path) -> None:
    path = tmp_path / "net.md"
    assert is_our_card(path) and licence_in(path) == "unknown"
    write_card(path, card_text("A net", "unknown", {}).replace("license: unknown", "license: cc-by-4.0"))
    assert is_our_card(path) and licence_in(path) == "cc-by-4.0"
    path.write_text("# My notes\n\nlicense: mine, and library_name: ien\n")
    assert not is_our_card(path) and licence_in(path) == "unknown"
    assert [file.name for file in Path(tmp_path).iterdir()] == ["net.md"]
