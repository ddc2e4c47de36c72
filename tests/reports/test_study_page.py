"""The page of a study: everything that is in the folder is on it, nothing in it can break it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from closeknit.errors import DataError
from closeknit.reports.study_page import write_report
from closeknit.reports.study_page.folder import read_study_folder

NASTY = '</script><script>alert(1)</script> "it\'s" <b>bold</b> & \u2028 ${x} {{ 7 * 7 }}'
LONG = "messages_to_a_bank_about_cards_and_transfers"
OBJECTIVES = ("cross_entropy", "triple_entropy", "clld")


def make_study(
    folder: Path,
    *,
    data: dict[str, int],
    sizes: tuple[int, ...] = (1000,),
    objectives: tuple[str, ...] = OBJECTIVES[:2],
    seeds: tuple[int, ...] = (2, 16),
    folds: int = 3,
    selection: str = "fixed",
    tested: int = 120,
    points: int = 40,
) -> Path:
    """A finished study that no model was trained for: data names and their numbers of classes."""
    generator = np.random.default_rng(0)
    (folder / "details").mkdir(parents=True)
    names = {name: [f"{name} class {c}" for c in range(n)] for name, n in data.items()}
    next(iter(names.values()))[0] = '<i>first</i> & "only"'
    search = (
        None
        if selection == "fixed"
        else {"method": "halving", "trials": 12, "space": {"train.lr": [1, 2]}}
    )
    study = {
        "data": [{"name": n, "rows": 5452, "classes": c, "pairs": False} for n, c in names.items()],
        "sizes": list(sizes),
        "objectives": {name: {"name": name, "weight": 0.5, "note": NASTY} for name in objectives},
        "baseline": objectives[0],
        "folds": folds,
        "seeds": list(seeds),
        "encoder": "all-MiniLM-L6-v2",
        "selection": selection,
        "search": search,
        "hard_sets": None,
        "config": {"train": {"lr": 2e-5, "epochs": 4}, "encoder": {"name": "all-MiniLM-L6-v2"}},
        "command": "closeknit compare trec --objective triple_entropy",
    }
    results, trials = [], []
    for (name, classes), size in [(item, size) for item in names.items() for size in sizes]:
        for o, objective in enumerate(objectives):
            for seed, fold in [(seed, fold) for seed in seeds for fold in range(folds)]:
                key = f"{name}-{size}-{objective}-{seed}-{fold}"
                where = {
                    "data": name,
                    "size": size,
                    "objective": objective,
                    "seed": seed,
                    "fold": fold,
                }
                first = seed == seeds[0] and fold == 0
                expected = np.random.default_rng([seed, fold]).integers(len(classes), size=tested)
                detail, f1 = predictions(
                    classes, expected, o, fold, generator, points if first else 0
                )
                if objective == "clld":
                    side = np.abs(generator.normal(1.0, 0.3, (len(classes), len(classes))))
                    detail["distance"] = np.round(
                        (side + side.T) * (1 - np.eye(len(classes))), 3
                    ).tolist()
                (folder / "details" / f"{key}.json").write_text(json.dumps(detail))
                if first:
                    vectors(folder / "details" / f"{key}.npz", detail, points, len(classes))
                results.append(
                    {**where, "options": {"name": objective}, "encoder": "all-MiniLM-L6-v2", "folds": folds,
                     "selection": selection, "weighted_f1": f1, "accuracy": f1 + 0.01, "macro_f1": f1 - 0.02,
                     "seconds": 12.5 + o, "steps": 100, "versions": {"closeknit": "0.1.0", "torch": "2.8"}, "key": key}
                )  # fmt: skip
                for trial in range(12 if search else 0):
                    options = {
                        "train.lr": [1e-5, 3e-5, 1e-4, 3e-4][trial % 4],
                        "centers": int(1 + trial // 4),
                    }
                    score = 0.8 + 0.02 * (trial % 4) + 0.002 * float(generator.normal())
                    trials.append({**where, "split": 0, "trial": trial, "options": options, "score": score,
                                   "seconds": 2.0, "key": f"{key}-{trial}", "stage": 0})  # fmt: skip
    (folder / "study.json").write_text(json.dumps(study))
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results))
    if search:
        (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trials))
    return folder


def predictions(classes, expected, strength, fold, generator, points):
    C, n = len(classes), len(expected)
    near = np.where(generator.random(n) < 0.7, expected ^ 1, generator.integers(C, size=n)) % C
    predicted = np.where(generator.random(n) < 0.78 + 0.05 * strength, expected, near)
    right = expected == predicted
    confidence = np.where(right, generator.beta(9, 1, n), generator.beta(4, 2, n))
    entropy = (1 - confidence) * np.log(C) * 1.2
    texts = {str(i): f"What is text {i} about, in a few words?" for i in range(points)}
    wrong = np.flatnonzero(~right)
    for i in wrong[np.argsort(-confidence[wrong])][:10].tolist():
        texts[str(i)] = f"How many people were asked about mistake {i}? {NASTY}"
    history = [
        {"epoch": e, "loss": 2.0 / e + 0.1 * strength + 0.03 * fold, "weighted_f1": 0.9 - 0.3 / e}
        for e in (1.0, 2.0, 3.0, 4.0)
    ]
    detail = {
        "labels": classes, "rows": (np.arange(n) + n * fold).tolist(), "expected": expected.tolist(),
        "predicted": predicted.tolist(), "confidence": confidence.round(4).tolist(),
        "entropy": entropy.round(4).tolist(), "history": history, "texts": texts,
    }  # fmt: skip
    return detail, float(right.mean())


def vectors(path, detail, points, classes):
    generator = np.random.default_rng(1)
    kinds = np.array(detail["expected"][:points])
    centres = generator.normal(size=(classes, 16))
    before = centres[kinds] * 0.3 + generator.normal(size=(points, 16))
    after = centres[kinds] * 2.0 + generator.normal(size=(points, 16))
    np.savez(
        path,
        positions=np.arange(points),
        before=before.astype(np.float16),
        after=after.astype(np.float16),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study with everything a page can show."""
    return make_study(
        tmp_path_factory.mktemp("whole") / "study",
        data={"trec": 6, LONG: 33},
        sizes=(1000, 4000),
        objectives=OBJECTIVES,
        selection="nested",
        folds=2,
        tested=90,
        points=30,
    )


@pytest.fixture(scope="module")
def page(whole):
    return write_report(whole).read_text(encoding="utf-8")


@pytest.fixture
def small(tmp_path):
    return make_study(tmp_path / "study", data={"mr": 2}, seeds=(2,), tested=40, points=8)


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def keep_results(folder: Path, wanted) -> None:
    """Only the result lines for which this holds."""
    path = folder / "results.jsonl"
    lines = [line for line in path.read_text().splitlines() if wanted(json.loads(line))]
    path.write_text("".join(line + "\n" for line in lines))


def change_study(folder: Path, **more) -> None:
    path = folder / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


# ---------------------------------------------------------------- what is on it


def test_every_section_is_there_in_order(page):
    assert sections(page) == [
        "verdict", "table", "confidence", "where", "runs", "curves", "confusion", "distance", "map", "classes", "errors",
        "search", "method",
    ]  # fmt: skip
    assert re.findall(r'<a href="#(\w+)"', page) == sections(page)


def test_sections_without_data_are_left_out(small):
    shutil.rmtree(small / "details")
    assert sections(write_report(small).read_text()) == ["verdict", "table", "runs", "method"]


def test_the_scores_are_the_means_of_the_results(whole, page):
    rows = [json.loads(line) for line in (whole / "results.jsonl").read_text().splitlines()]
    for data in ("trec", LONG):
        own = [
            r["weighted_f1"]
            for r in rows
            if (r["data"], r["size"], r["objective"]) == (data, 4000, "clld")
        ]
        assert len(own) == 4
        mean, spread = 100 * np.mean(own), 100 * np.std(own, ddof=1)
        assert re.search(rf"<td>(<b>)?{mean:.2f}(</b>)? <small>± {spread:.2f}</small>", page)


def test_published_figures_are_marked_as_such(page):
    assert "published: RoBERTa-base, weighted F1, 5 folds (TripleEntropy paper)" in page
    assert "published: TextCNN, accuracy, official test part (CLLD paper)" in page
    assert "79.80" in page  # cross-entropy on TREC, small


def test_large_class_sets_are_cut_to_those_that_can_be_read(page):
    assert "Only the 30 classes with the most mistakes are shown; 3 more are left out." in page


def test_the_file_needs_nothing_else_and_is_small(small, page):
    assert not re.search(r'(src|href)="(?!#|data:,")', page)
    assert "@import" not in page and "url(" not in page and "http" not in page
    folder = make_study(
        small.parent / "two", data={"trec": 6, "mr": 2}, tested=1000, points=120, folds=2
    )
    assert write_report(folder).stat().st_size < 1_000_000


def test_ids_are_unique_and_every_reference_meets_one(page):
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for name in re.findall(r'aria-labelledby="([^"]+)"', page):
        assert name in ids


def test_the_page_is_balanced_html(page):
    class Balance(HTMLParser):
        open: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag, attrs):
            if tag not in {"meta", "link", "br", "wbr", "input"}:
                self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []


def test_texts_and_names_cannot_break_out(whole, page):
    assert page.count("<script") == 3
    assert "<script>alert" not in page
    assert "<b>bold" not in page and "<i>first" not in page
    assert "&lt;i&gt;first&lt;/i&gt; &amp; " in page
    assert "{{ 7 * 7 }}" in page  # data is never a template
    stored = re.search(r'<script type="application/json" id="maps">(.*?)</script>', page, re.S)
    maps = json.loads(stored.group(1))
    texts = [text for view in maps.values() for text, _, _ in view["points"]]
    assert any(NASTY in text for text in texts)


def test_a_page_made_twice_is_the_same_and_leaves_nothing_behind(small):
    first = write_report(small).read_bytes()
    assert write_report(small).read_bytes() == first
    assert not [path for path in small.iterdir() if path.name.startswith(".")]


def test_a_page_that_cannot_be_made_leaves_the_old_one(small, monkeypatch):
    old = write_report(small).read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk is full")))
    with pytest.raises(OSError, match="disk is full"):
        write_report(small)
    assert (small / "report.html").read_bytes() == old
    assert not [path for path in small.iterdir() if path.name.startswith(".")]


# ---------------------------------------------------------------- studies that are not whole


def test_an_unfinished_study_says_how_far_it_is(small):
    keep_results(small, lambda row: row["fold"] == 0)
    page = write_report(small).read_text()
    assert "Unfinished: 2 of 6 runs are finished" in page
    assert "not known from one run" in page


def test_gains_are_drawn_by_rows_and_by_classes(whole, page):
    """The chart of the TripleEntropy paper: one point for each size, with the mean paired gain."""
    for data in ("trec", LONG):
        assert f"Gain over cross_entropy on {data} by number of rows" in page
    assert "Gain over cross_entropy by number of classes" in page
    rows = [json.loads(line) for line in (whole / "results.jsonl").read_text().splitlines()]
    for size in (1000, 4000):
        scores = {
            (row["objective"], row["seed"], row["fold"]): row["weighted_f1"]
            for row in rows
            if row["data"] == "trec" and row["size"] == size
        }
        gains = [
            score - scores["cross_entropy", seed, fold]
            for (objective, seed, fold), score in scores.items()
            if objective == "clld"
        ]
        shown = f"{100 * sum(gains) / len(gains):+.2f}".replace("-", "\u2212")
        assert f"clld, trec · {size:,} rows: {shown} (" in page


def test_sizes_beyond_the_rows_count_once(small):
    change_study(small, sizes=[1000, 9000, 20000])
    assert "6 of 12 runs" in write_report(small).read_text()


def test_a_study_that_has_grown_is_done_when_what_was_last_asked_for_is(small):
    settings = json.loads((small / "study.json").read_text())
    change_study(small, seeds=[16])  # none of the runs that are there
    assert "Unfinished: 0 of 6 runs are finished" in write_report(small).read_text()
    fewer = dict(list(settings["objectives"].items())[:1])
    keep_results(
        small, lambda run: run["objective"] in fewer or run["fold"] == 0
    )  # more than was asked for
    change_study(small, seeds=[2], objectives=fewer)
    assert "Unfinished" not in write_report(small).read_text()


def test_without_the_baseline_scores_are_shown_and_no_gain(small):
    keep_results(small, lambda row: row["objective"] != "cross_entropy")
    page = write_report(small).read_text()
    assert "no run of the baseline yet to compare with" in page
    assert "classes" not in sections(page)


def test_nothing_but_a_plan_makes_a_page(small):
    shutil.rmtree(small / "details")
    (small / "results.jsonl").unlink()
    page = write_report(small).read_text()
    assert "No run has finished yet." in page
    assert sections(page) == ["verdict", "method"]


def test_damaged_lines_and_files_are_passed_over(small):
    with (small / "results.jsonl").open("a") as file:
        file.write('{"data": "mr"}\n[1, 2]\nnull\n{"data": "mr", "si')
    details = sorted((small / "details").glob("*.json"))
    details[0].write_text("{")
    for path in (small / "details").glob("*.npz"):
        path.write_bytes(b"PK not a zip")
    page = write_report(small).read_text()
    assert len(read_study_folder(small).runs) == 6
    assert "map" not in sections(page) and "confusion" in sections(page)


def test_a_run_that_was_done_again_counts_once(small):
    path = small / "results.jsonl"
    path.write_text(path.read_text() * 2)
    assert len(read_study_folder(small).runs) == 6


@pytest.mark.parametrize(
    ("content", "said"), [(None, "is not a study"), ("{", "cannot be read"), ("[]", "cannot be")]
)
def test_a_folder_that_is_no_study_is_refused_with_a_sentence(tmp_path, content, said):
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(DataError, match=said):
        write_report(tmp_path)


def test_only_runs_that_all_objectives_have_are_compared_class_by_class(small):
    keep_results(small, lambda row: row["objective"] == "cross_entropy" or row["fold"] == 1)
    page = write_report(small).read_text()
    support = [
        int(n)
        for n in re.findall(
            r"(\d+) predictions</title>", page.split('id="classes"')[1].split("</svg>")[0]
        )
    ]
    assert sum(support) == 40


# ---------------------------------------------------------------- choices of a study


def test_a_correction_is_said_to_be_over_the_comparisons_that_it_is_over(tmp_path):
    one = make_study(
        tmp_path / "one", data={"mr": 2}, objectives=OBJECTIVES, seeds=(2,), tested=40, points=8
    )
    assert "correction for" not in write_report(one).read_text()  # two objectives, each tested once
    two = make_study(
        tmp_path / "two",
        data={"mr": 2, "cr": 2},
        objectives=OBJECTIVES,
        seeds=(2,),
        tested=40,
        points=8,
    )
    said = re.findall(r"correction for (\d+) comparisons", write_report(two).read_text())
    assert said == ["2"] * 4


def test_choosing_on_the_reported_folds_is_said_in_red(tmp_path):
    folder = make_study(
        tmp_path / "study", data={"mr": 2}, selection="paper", tested=40, points=8, folds=2
    )
    page = write_report(folder).read_text()
    assert 'class="banner"' in page and "These scores are optimistic: " in page
    assert page.count("Too high by") == 1
    (folder / "trials.jsonl").unlink()
    assert "no trials are stored" in write_report(folder).read_text()


def test_an_honest_study_has_no_banner(page):
    assert 'class="banner"' not in page


def test_given_hard_sets_are_used(small):
    names = json.loads((small / "study.json").read_text())["data"][0]["classes"]
    change_study(small, hard_sets={"mr": [names]})
    page = write_report(small).read_text()
    assert "These sets were given with the study." in page


def test_hard_sets_are_found_and_the_doubt_is_said(page):
    assert "These sets were found in the confusion matrix of cross_entropy" in page


def test_of_many_objectives_one_matrix_at_a_time_stands_beside_the_baseline(tmp_path):
    names = tuple(f"objective_{i}" for i in range(5))
    folder = make_study(
        tmp_path / "study", data={"mr": 2}, objectives=names, seeds=(2,), tested=40, points=8
    )
    page = write_report(folder).read_text()
    assert page.count('data-show="matrix-cell0-') == 4
    assert len(re.findall(r'<figure class="choice( on)?" id="matrix-cell0-', page)) == 4


def test_a_distance_that_was_not_learnt_is_left_out(small):
    for path in (small / "details").glob("*triple*.json"):
        detail = json.loads(path.read_text())
        path.write_text(json.dumps({**detail, "distance": [[0, 10], [10, 0]]}))
    assert "distance" not in sections(write_report(small).read_text())


def test_the_search_names_the_setting_that_matters(page):
    part = page.split('<section id="search">')[1]
    assert "train.lr: " in part
    assert "0.0003 <small>×" in part


def test_a_grid_is_said_to_be_whole(small):
    change_study(small, search={"method": "grid", "trials": 20})
    page = write_report(small).read_text()
    assert "grid, all settings" in page and "20 trials" not in page


def test_a_page_is_made_without_torch(small):
    code = (
        "import sys; from pathlib import Path; from closeknit.reports.study_page import write_report;"
        "write_report(Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(small)]).returncode == 0


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if program is None:
        pytest.skip("no chromium on this machine")
    with sync.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def look(browser, whole, page):
    """Opens the page; at the end nothing may have been complained of or asked of the network."""
    complaints: list[str] = []
    opened = []

    def view(width=1400, scheme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
            **options,
        )
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on(
            "request",
            lambda r: None if r.url.startswith(("file:", "data:")) else complaints.append(r.url),
        )
        tab.goto((whole / "report.html").as_uri())
        opened.append(context)
        return tab

    yield view
    for context in opened:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1400])
def test_the_page_fits_every_screen_in_light_and_dark(look, width, scheme):
    tab = look(width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    shade = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in re.findall(r"\d+", shade)[:3]) > 380) == (scheme == "light")
    cut = tab.evaluate(
        """[...document.querySelectorAll('main svg')].filter(s => s.getClientRects().length &&
        !s.closest('.box, .scroll') && s.getBoundingClientRect().right > innerWidth).length"""
    )
    assert cut == 0
    tiny = tab.evaluate(
        """[...document.querySelectorAll('main svg.chart')].filter(s => s.getClientRects().length &&
        s.getBoundingClientRect().width / s.viewBox.baseVal.width < 0.85).length"""
    )
    assert tiny == 0  # letters of 11 pixels stay legible


def test_the_theme_button_turns_the_light_off_and_on(look):
    tab = look()
    shade = "getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(shade)
    tab.click("#theme")
    assert tab.evaluate(shade) != before
    assert tab.inner_text("#theme").endswith("Light")
    tab.reload()
    assert tab.evaluate(shade) != before  # it is remembered
    tab.click("#theme")
    assert tab.evaluate(shade) == before


def test_every_tab_shows_its_own_panel(look):
    tab = look()
    for section in tab.query_selector_all("section:has(.tabs)"):
        seen = set()
        for button in section.query_selector_all("[role=tab]"):
            button.click()
            assert button.get_attribute("aria-selected") == "true"
            shown = [p for p in section.query_selector_all(".panel") if p.is_visible()]
            assert {p.get_attribute("data-cell") for p in shown} == {
                button.get_attribute("data-cell")
            }
            seen.add("".join(panel.inner_html() for panel in shown))
        assert len(seen) == len(section.query_selector_all("[role=tab]")) > 1


def test_a_data_set_chosen_in_one_section_is_chosen_in_all(look):
    tab = look()
    tab.click("#confusion-tab-cell2")
    assert tab.is_visible("#map-cell2") and not tab.is_visible("#map-cell0")
    assert tab.is_visible("#search-cell2")


def test_tabs_follow_the_arrow_keys(look):
    tab = look()
    tab.focus("#confusion-tab-cell0")
    tab.keyboard.press("ArrowRight")
    assert tab.is_visible("#confusion-cell1")
    assert tab.evaluate("document.activeElement.id") == "confusion-tab-cell1"
    tab.keyboard.press("Home")
    assert tab.is_visible("#confusion-cell0")


def test_the_text_of_a_point_is_shown_on_hover_tap_and_keys(look):
    tab = look()
    point = tab.locator("#map0x0 svg.map").first.locator(".p.bad").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    told = tab.inner_text("#tip")
    assert "expected" in told and "predicted" in told
    assert "What is text" in told or "How many people" in told
    tab.mouse.move(2, 400)
    assert tab.is_hidden("#tip")
    tab.locator("#map0x0 svg.map").first.focus()
    tab.keyboard.press("ArrowRight")
    first = tab.inner_text("#tip")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#tip") != first
    tab.keyboard.press("Escape")
    assert tab.is_hidden("#tip")
    phone = look(390, has_touch=True)
    point = phone.locator("#map0x0 svg.map").nth(1).locator(".p").last
    point.scroll_into_view_if_needed()
    point.tap(force=True)
    assert "expected" in phone.inner_text("#tip")
    box = phone.locator("#tip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_another_objective_shows_another_map_and_classes_dim_the_rest(look):
    tab = look()
    tab.click('[data-show="map0x1"]')
    assert tab.is_visible("#map0x1") and tab.is_hidden("#map0x0")
    legend = tab.locator("#map0x1 .classes button")
    legend.nth(1).click()
    kind = legend.nth(1).get_attribute("data-k")
    assert tab.locator(f'#map0x1 .p[data-i][data-k="{kind}"].dim').count() == 0
    total, own = (
        tab.locator("#map0x1 .p[data-i]"),
        tab.locator(f'#map0x1 .p[data-i][data-k="{kind}"]'),
    )
    assert tab.locator("#map0x1 .dim").count() == total.count() - own.count() > 0
    legend.nth(1).click()
    assert tab.locator("#map0x1 .dim").count() == 0


def test_mistakes_are_found_by_objective_and_by_word(look):
    tab = look()
    rows = tab.locator("#mistakes-cell0 tbody tr:not([hidden])")
    all_rows = rows.count()
    for button in tab.query_selector_all("#mistakes-cell0 [data-filter]"):
        button.click()
        who = button.get_attribute("data-filter")
        assert button.get_attribute("aria-pressed") == "true"
        shown = set(rows.evaluate_all("rows => rows.map(row => row.dataset.objective)"))
        assert shown == ({who} if who else set(OBJECTIVES))
    tab.click('#mistakes-cell0 [data-filter=""]')
    tab.fill("#mistakes-cell0 input", "TREC CLASS 3")
    assert 0 < rows.count() < all_rows
    assert f"{rows.count()} of {all_rows}" in tab.inner_text("#mistakes-cell0 .count")
    tab.fill("#mistakes-cell0 input", "no such words")
    assert rows.count() == 0


def test_paper_shows_every_data_set_in_light(look):
    tab = look(1000, "dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.is_visible("#confusion-cell0") and tab.is_visible("#confusion-cell3")
    assert tab.is_hidden(".top")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.set_viewport_size({"width": 720, "height": 1000})  # A4 between its margins
    assert tab.evaluate("document.documentElement.scrollWidth") <= 720


def test_without_scripts_everything_is_shown(look):
    tab = look(java_script_enabled=False)
    assert tab.is_visible("#confusion-cell0") and tab.is_visible("#confusion-cell3")
    assert tab.is_visible("#map0x2")
