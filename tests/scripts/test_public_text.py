"""No document of the ladder's text shares eight words with a task."""

from scripts.public_text import grams, grams_of_tasks


def test_a_document_that_shares_eight_words_with_a_task_is_known(tmp_path):
    (tmp_path / "train.csv").write_text(
        "mr,ref\nx,The Eagle is a cheap coffee shop near Burger King\n"
    )
    tasks = grams_of_tasks(tmp_path)
    assert not tasks.isdisjoint(grams("so the eagle is a cheap, coffee shop near"))
    assert tasks.isdisjoint(grams("so the eagle is a cheap coffee shop by the river"))
