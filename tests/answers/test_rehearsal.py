"""A rehearsal on a terminal, in a notebook and as files, made by hand."""

import csv
import json
import re
from html import unescape

import pytest

from shoestring.answers.document import LineChart, Section
from shoestring.answers.rehearsal import files
from shoestring.answers.rehearsal.document import document, not_genuine, summary
from shoestring.answers.rehearsal.timeline import chart
from shoestring.answers.rehearsal.verdict import name, place_text, plain, sentence, status
from shoestring.answers.renderers.page.document import render
from shoestring.answers.renderers.terminal.document import lines
from shoestring.answers.renderers.terminal.document import plain as terminal
from shoestring.base.errors import UsageError
from shoestring.base.units import GIB, MIB
from shoestring.hardware.targets import find
from shoestring.runs.rehearse.prepared import PreparedRehearsal
from shoestring.runs.rehearse.rehearsal import MemoryPoint
from tests.answers.markup_text import read
from tests.answers.rehearsals import BACKWARD, finished, rehearsed

VERDICT = (
    "train.py does not fit kaggle-t4 (NVIDIA T4, 14.56 GiB): it runs out of memory on GPU 0 at update 161, in "
    "train.py:49 (loss.backward()), asking for 512 MiB with 14.27 GiB in use."
)


def joined(text):
    return " ".join(text.split())


def page_text(rehearsal):
    """Return the text of the page in its order, without that of drawings' paths."""
    html = re.sub(r"<style.*?</style>|<title.*?</title>", "", render(document(rehearsal)), flags=re.DOTALL)
    return joined(unescape(re.sub(r"<[^>]*>", " ", html)))


@pytest.mark.parametrize(
    ("rehearsal", "beginning", "word"),
    [
        (rehearsed(), VERDICT, "does not fit"),
        (finished(), "train.py fits kaggle-t4 (NVIDIA T4, 14.56 GiB): it ran to its end, 1,000 updates, with", "fits"),
        (finished(end="stopped", updates=20), "train.py fits kaggle-t4 (NVIDIA T4, 14.56 GiB): it was stopped", "fits"),
        (
            finished(end="failed", updates=12, error="ValueError: too short"),
            "train.py fails after 12 updates on kaggle-t4 (NVIDIA T4, 14.56 GiB), not for the memory of a GPU: "
            "ValueError: too short",
            "failed",
        ),
        (finished(end="failed", exit_status=3), "train.py fails after 1,000 updates on kaggle-t4", "failed"),
        (
            finished(end="interrupted", updates=1),
            "train.py was interrupted after 1 update on kaggle-t4 (NVIDIA T4, 14.56 GiB). Until then",
            "interrupted",
        ),
        (
            finished(end="host memory", updates=3),
            "train.py was ended after 3 updates: this machine's memory is used up, of which it used 3.00 GiB. Until",
            "failed",
        ),
        (finished(used_gpu=False, devices=()), "train.py has used no GPU of kaggle-t4", "no GPU used"),
        (
            finished(script="-m pkg.train", target=find("kaggle-t4x2"), updates=0),
            "pkg.train fits kaggle-t4x2 (2 × NVIDIA T4, 14.56 GiB each): it ran to its end, without an optimizer step",
            "fits",
        ),
    ],
)
def test_first_sentence_is_the_verdict_on_all_faces(rehearsal, beginning, word):
    text = plain(sentence(rehearsal))
    assert text.startswith(beginning)
    assert status(rehearsal) == word
    for answer in (document(rehearsal), summary(rehearsal)):
        assert lines(answer)[0] == text
    assert joined(str(rehearsal)).startswith(beginning)
    title = f"{name(rehearsal)} on {rehearsal.target.name}"
    assert read(rehearsal._repr_html_())[:3] == [title, word, text]
    assert page_text(rehearsal).index(text) < 80


@pytest.mark.parametrize(
    ("update", "phase", "text"),
    [
        (0, "loading", "in loading, before the first update is made"),
        (21, "evaluation", "in evaluation after update 20"),
        (1_200, "training", "at update 1,200"),
    ],
)
def test_verdict_says_when_memory_ran_out(update, phase, text):
    rehearsal = rehearsed()
    error = rehearsal.out_of_memory
    changed = type(error)(**{**vars(error), "update": update, "phase": phase})
    assert f"on GPU 0 {text}, in train.py:49" in plain(sentence(rehearsed(out_of_memory=changed)))


def test_error_without_a_frame_names_no_place():
    error = rehearsed().out_of_memory
    changed = type(error)(**{**vars(error), "stack": (), "own_frame": None})
    assert "at update 161, asking for" in plain(sentence(rehearsed(out_of_memory=changed)))


def test_terminal_shows_own_frames_before_those_of_libraries():
    text = terminal(summary(rehearsed()))
    places = [text.rindex(place) for place in ("train.py:49 ", "train.py:60 ", "graph.py:829 ", "_tensor.py:625 ")]
    assert places == sorted(places)
    assert text.index("Tensors had 13.00 GiB, the allocator held 922 MiB more") < places[0]


@pytest.mark.parametrize("width", [80, 100])
def test_tables_are_not_cropped(width):
    text = terminal(summary(rehearsed()), width=width)
    for words in ("GPU 0", "14.04 GiB", "14.56 GiB", "3 min 12 s", "optimizer states", "train.py:50 (loss.backward())"):
        assert words in text
    assert ("CUDA context" in text) is (width == 100)
    assert all(len(line) <= width for line in text.splitlines())


def test_long_line_of_code_is_cut():
    frame = type(BACKWARD)(file="./train.py", line=1, function="f", text="x" * 100)
    assert place_text(frame) == f"train.py:1 ({'x' * 60}…)"


def test_summary_has_the_largest_holders_and_the_document_all():
    short, whole = terminal(summary(rehearsed())), terminal(document(rehearsed()))
    assert "and 55.00 MiB by 5 other lines" in short and "model.py:9 " not in short
    assert "other lines" not in whole and "model.py:9 " in whole
    assert "the whole stack, 4 frames" in whole and "the whole stack, 4" not in short
    for words in ("optimizer states", "train.py:50 (loss.backward())", "402"):
        assert words in short and words in whole
    assert short.endswith("all assumptions and notes.")
    assert whole.rstrip().endswith("shoestring rehearse train.py --on kaggle-t4")


def test_all_faces_have_peaks_holders_proposals_times_limits_and_what_it_is_not():
    rehearsal = rehearsed()
    texts = (joined(str(rehearsal)), " ".join(read(rehearsal._repr_html_())), page_text(rehearsal))
    for text in texts:
        for words in (
            "GPU 0", "13.90 GiB", "14.56 GiB", "141 MiB", "loading", "training", "3 min 12 s", "6.00 GiB",
            "activation checkpointing", "1.2 s", "900 ms", "20 min 00 s", "in one session of 12 h 00 min", "3.00 GiB",
            "of 31.36 GiB that kaggle-t4 has", "500 MiB", "of 18.16 GiB that kaggle-t4 has", "mm, native_layer_norm",
            "a note", "no kernel has run", "available 14.42 GiB",
        ):  # fmt: skip
            assert words in text, words


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"session_seconds": 1500.0}, "they may not end in time in one session of 25 min 00 s"),
        ({"session_seconds": 500.0}, "they do not end in time in one session of 8 min 20 s: they take 3 sessions"),
        ({"session_seconds": None}, "26 min 40 s)\n"),
        ({"total_updates": None}, "--total-updates N does"),
        ({"time": None}, "unknown: too few updates were made"),
    ],
)
def test_time_of_all_updates_is_compared_with_a_session(changes, text):
    assert text in "\n".join(lines(document(finished(**changes)))) + "\n"


def test_host_memory_beyond_the_target_does_not_fit():
    rehearsal = finished(host_peak_bytes=40 * GIB)
    assert "40.00 GiB of 31.36 GiB that kaggle-t4 has: it does not fit" in "\n".join(lines(document(rehearsal)))
    assert "of 31.36 GiB that kaggle-t4 has: it does not fit" in page_text(rehearsal)


def test_target_without_platform_has_no_limits_to_compare_with():
    text = "\n".join(lines(document(finished(target=find("t4"), session_seconds=None))))
    assert re.search(r"^host memory +3\.00 GiB$", text, re.MULTILINE)


def test_losses_mean_something_if_all_values_are_computed():
    assert "losses and metrics mean nothing" in not_genuine(rehearsed())
    assert "losses" not in not_genuine(rehearsed(values="all"))


def test_handled_errors_are_counted():
    assert "handled 2 out-of-memory errors itself" in str(finished(survived_out_of_memory=2))


def points(*bytes_and_phases, device=0):
    return tuple(
        MemoryPoint(device=device, update=update, phase=phase, allocated_bytes=size, reserved_bytes=2 * size)
        for update, size, phase in bytes_and_phases
    )


def test_chart_has_the_peaks_below_what_is_available():
    timeline = points((0, GIB, "loading"), (1, 2 * GIB, "training"), (1, 3 * GIB, "training"), (2, GIB, "evaluation"))
    drawn = chart(finished(timeline=timeline))
    assert isinstance(drawn, LineChart)
    tensors, reserved = drawn.series
    assert [(point.x, point.y) for point in tensors.points] == [(1, 1), (1.5, 2), (2, 3), (3, 1)]
    assert [point.y for point in reserved.points] == [2, 4, 6, 2]
    assert (tensors.latest, reserved.latest) == (3, 6)
    assert drawn.marks == [1, 2] and drawn.end == 3
    (level,) = drawn.levels
    assert level.y * GIB == pytest.approx(find("kaggle-t4").device.memory_bytes - 141 * MIB)


def test_long_time_line_keeps_its_peaks():
    timeline = points(*((update, GIB + update, "training") for update in range(1, 1_000)), (1_000, 9 * GIB, "training"))
    drawn = chart(finished(timeline=(*timeline[-1:], *timeline[:-1])))
    assert len(drawn.series[0].points) <= 300
    assert max(point.y for point in drawn.series[0].points) == 9
    text = terminal(document(finished(timeline=(*timeline[:500], *timeline[-1:], *timeline[500:-1]))))
    assert "█" in text and "╌ available" in text


def test_refused_allocation_is_a_dot_above():
    refused = chart(rehearsed()).series[-1]
    assert refused.has_dots and refused.points[0].y == pytest.approx(13.9 + 0.5)
    assert all(series.name != "refused" for series in chart(finished()).series)


def test_each_gpu_has_a_curve_the_fullest_first():
    timeline = (*points((1, GIB, "training")), *points((1, 2 * GIB, "training"), device=1))
    names = [series.name for series in chart(finished(timeline=timeline)).series]
    assert names == ["peak of tensors on GPU 1", "peak of tensors on GPU 0", "peak reserved on GPU 1"]


def test_without_points_there_is_no_chart():
    rehearsal = finished(timeline=(), phases=(), devices=())
    assert chart(rehearsal) is None
    titles = [item.title for item in document(rehearsal).content if isinstance(item, Section)]
    assert not {"memory by GPU", "memory by phase"} & set(titles)


def test_many_changes_of_the_phase_have_no_marks():
    phases = [(update, GIB, phase) for update in range(1, 40) for phase in ("training", "evaluation")]
    assert chart(finished(timeline=points(*phases))).marks == []


def test_folder_has_the_answer_a_page_and_the_time_line(tmp_path):
    folder = tmp_path / "new" / "folder"
    rehearsal = rehearsed()
    files.require_folder(folder)
    files.write(rehearsal, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["memory.csv", "rehearsal.html", "rehearsal.json"]
    assert json.loads((folder / files.ANSWER).read_text()) == json.loads(json.dumps(rehearsal.json()))
    page = (folder / files.PAGE).read_text()
    assert "http://" not in re.sub(r'"http://www\.w3\.org[^"]*"', "", page) and "<script" not in page
    rows = list(csv.DictReader((folder / files.MEMORY).read_text().splitlines()))
    assert len(rows) == len(rehearsal.timeline)
    assert rows[0] == {
        "device": "0", "update": "0", "phase": "loading", "allocated_bytes": "0", "reserved_bytes": str(2 * GIB),
        "capacity_bytes": str(rehearsal.target.device.memory_bytes),
    }  # fmt: skip


def test_folder_with_files_is_not_written(tmp_path):
    files.require_folder(tmp_path)
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="exists"):
            files.require_folder(path)


def test_names_of_the_script_are_text():
    rehearsal = rehearsed(script="<b>&.py", error="\x1b[31m", notes=("<i>",))
    assert "<b>&.py" not in rehearsal._repr_html_() and "<i>" not in render(document(rehearsal))
    assert "\x1b" not in str(rehearsal)


def test_prepared_environment_says_what_to_type():
    prepared = PreparedRehearsal(stack="kaggle", torch="2.10.0+cu128", folder="/cache/torch")
    assert "PyTorch 2.10.0+cu128, with the versions of kaggle" in str(prepared)
    assert "shoestring rehearse SCRIPT.py --on kaggle-t4x2 --stack kaggle" in str(prepared)
    assert "2.10.0+cu128" in " ".join(read(prepared._repr_html_())) or "/cache/torch" in prepared._repr_html_()


def test_own_line_without_its_text_names_the_function():
    changed = type(BACKWARD)(file="./train.py", line=49, function="main")
    error = type(rehearsed().out_of_memory)(**{**vars(rehearsed().out_of_memory), "own_frame": changed})
    assert "in train.py:49 (main())" in plain(sentence(rehearsed(out_of_memory=error)))
