"""Ten everyday jobs, done as people do them: in Chromium, in a shell, and with the programs that read the result.

A step is one thing that a person does: a command, an address that is opened, a click, a drag, a key, a text that is
typed or pasted, a line of code. Reading, waiting and moving the pointer are no steps. docs/EVERYDAY.md says where each
job begins, and how many steps it takes.
"""

import functools
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import support
import tifffile
from PIL import Image

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import expect  # noqa: E402

from page_visit import (  # noqa: E402
    CHROMIUM, PIXELS, READY, Visit, array_of, assert_grey, browser, sampled, stored,
)  # fmt: skip
from test_java import version_of_java  # noqa: E402
from test_page_damage import colour_at, damage, is_hatched, waves  # noqa: E402

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium, or set N5_TEST_CHROMIUM=PROGRAM")

EVERYDAY = support.REPO / "docs/EVERYDAY.md"
ZARR_3 = support.REPO / "tests/.venv-zarr3/bin/python"
EM = "volume/em/"


def documented():
    """Return the number of steps of each job in the table of docs/EVERYDAY.md."""
    rows = [line.strip("|").split("|") for line in EVERYDAY.read_text().splitlines() if line.startswith("|")]
    return {cells[0].strip(): int(cells[2]) for cells in rows[2:]}


class Job:
    """A job of a person. Each method below does one step and counts it. At the end, the count must be the documented one."""

    def __init__(self, title):
        self.title, self.steps, self.names = title, [], {}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            assert len(self.steps) == documented()[self.title], "\n".join(self.steps)

    def step(self, *words):
        self.steps.append(" ".join(map(str, words)))

    def command(self, *words, status=0):
        """Run a command and return what it prints."""
        self.step(*words)
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done
        return done.stdout

    def serve(self, *arguments, **options):
        """Start a server with a command."""
        self.step("n5-server", *arguments)
        return support.Server(*arguments, **options)

    def open(self, page, address):
        self.step("open", address)
        return page.goto(address)

    def click(self, target):
        self.step("click", target)
        target.click()

    def drag(self, page, start, end):
        self.step("drag", start, end)
        page.mouse.move(*start)
        page.mouse.down()
        page.mouse.move(*end, steps=4)
        page.mouse.up()

    def press(self, page, key):
        self.step("press", key)
        page.keyboard.press(key)

    def type(self, page, text):
        """Type or paste a text where the focus is."""
        self.step("type", text)
        page.keyboard.insert_text(text)

    def append(self, file, line):
        """Add a line to a file."""
        self.step("append", line, "to", file)
        with file.open("a") as opened:
            opened.write(f"{line}\n")

    def line(self, code):
        """Enter a line of Python in a session."""
        assert "\n" not in code
        self.step(code)
        exec(code, self.names)


def position(visit):
    boxes = visit.page.locator(".slider input[type=number]")
    return [int(boxes.nth(n).input_value()) for n in range(boxes.count())]


def saved(page, directory, act):
    """Return the file that the browser saves while `act` runs."""
    with page.expect_download() as started:
        act()
    path = directory / started.value.suggested_filename
    started.value.save_as(path)
    return path


def test_the_table_has_the_ten_jobs_of_this_file():
    titles = re.findall(r'\bJob\("([^"]+)"\)', Path(__file__).read_text())
    assert sorted(documented()) == sorted(titles) and len(titles) == 10


# ---------------------------------------------------------------------------------------------------
# See, find, compare, share


def test_a_container_is_seen(browser, tmp_path, monkeypatch):
    # The desktop's program that opens the browser, which is told the address.
    launcher = support.write(tmp_path / "bin/xdg-open", f'#!/bin/sh\necho "$1" >{tmp_path}/new && mv {tmp_path}/new {tmp_path}/opened\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{launcher.parent}:{os.environ['PATH']}")
    with Job("See a container") as job, job.serve(support.DEMO, "--open") as server:
        until = time.monotonic() + 60
        while not (tmp_path / "opened").exists():
            assert time.monotonic() < until, server.log()
            time.sleep(0.02)
        assert (tmp_path / "opened").read_text().strip() == server.url
        with Visit(browser, server) as visit:
            job.click(visit.page.get_by_role("link", name="Synthetic EM").first)
            visit.page.wait_for_url("**/volume/em/")
            visit.ready()
            for (shown, pixels), down_right in zip(visit.canvases(), [(1, 0), (1, 2), (2, 0)], strict=True):
                assert_grey(stored(support.DEMO, shown["path"]), shown, pixels, down_right)


def test_a_dataset_is_found_among_thousands(browser, tmp_path):
    for n in range(3000):
        dataset = tmp_path / f"animal-{n // 300}/session-{n // 30 % 10}/roi-{n:04}"
        support.write(dataset / "attributes.json", support.attributes([64, 48, 20], [64, 48, 20]))
    wanted = waves(64, 48, 20)
    support.write_dataset(tmp_path / "animal-6/session-8/roi-2047", wanted, (64, 48, 20), "gzip")
    with support.Server(tmp_path) as server, Visit(browser, server) as visit, Job("Find a dataset among thousands") as job:
        page = visit.page
        job.press(page, "/")
        job.type(page, "2047")
        expect(page.locator(".found li > a")).to_have_text(["animal-6/session-8/roi-2047"], timeout=60_000)
        job.press(page, "Enter")
        page.wait_for_url("**/animal-6/session-8/roi-2047/")
        visit.ready()
        (shown, pixels), *_ = visit.canvases()
        assert_grey(wanted, shown, pixels, (1, 0))


def test_labels_are_compared_with_the_image(browser, demo):
    with Visit(browser, demo) as visit, Job("Compare labels with the image") as job:
        page = visit.page
        job.click(page.locator("#entries a", has_text="volume/"))
        page.wait_for_url("**/volume/")
        job.click(page.get_by_role("link", name="Show labels over em"))
        page.wait_for_url("**/volume/em/#labels=labels")
        visit.ready()
        page.wait_for_function("() => document.querySelector('select[aria-label=\"Labels on top\"]').value === 'labels'")
        visit.drawn()
        em, labels = (stored(support.DEMO, f"volume/{name}/s0") for name in ("em", "labels"))
        (shown, pixels), *_ = visit.canvases()
        assert shown["path"] == "volume/em/s0"
        low, high = map(float, shown["window"].split(","))
        grey = np.clip((sampled(em, shown)[:, :, 0].T.astype(float) - low) * 255 / (high - low), 0, 255)
        plane = sampled(labels, shown)[:, :, 0].T
        assert np.abs(pixels[plane == 0][:, 0] - grey[plane == 0]).max() <= 0.51
        # The rest is 60 % of the image and 40 % of the colour of the label.
        for label in np.unique(plane[plane > 0]):
            colours = (pixels[plane == label][:, :3] - 0.6 * np.round(grey[plane == label])[:, None]) / 0.4
            assert np.ptp(colours, axis=0).max() < 6 and np.ptp(colours.mean(axis=0)) > 20
        row, column = np.argwhere(plane > 0)[len(np.argwhere(plane > 0)) // 2]
        page.mouse.move(*visit.point(column, row))
        z = int(shown["start"].split(",")[2])
        expect(page.locator(".readout")).to_contain_text(f"labels {labels[column, row, z]}")
        assert f"value {em[column, row, z]}" in page.inner_text(".readout")


def test_a_view_is_shared(browser, demo):
    with Visit(browser, demo, EM, permissions=["clipboard-read", "clipboard-write"]) as mine:
        mine.page.mouse.dblclick(*mine.point(60, 130))
        for key in ("+", "+", "PageDown", "PageDown"):
            mine.page.keyboard.press(key)
        low, high = (mine.page.get_by_label(f"{name} value") for name in ("Black", "White"))
        low.fill("60")
        high.fill("170")
        mine.page.keyboard.press("Tab")
        mine.drawn()
        with Job("Share a view") as job, Visit(browser, demo) as colleague:
            job.click(mine.page.get_by_role("button", name="Copy a link to this view"))
            mine.page.wait_for_selector("button:has-text('Copied')")
            link = mine.page.evaluate("navigator.clipboard.readText()")
            job.open(colleague.page, link)
            colleague.ready()
            assert position(colleague) == position(mine) == [60, 130, 21]
            assert colleague.view() == mine.view()
            for plane in range(3):
                assert (colleague.screen(plane) == mine.screen(plane)).all()


# ---------------------------------------------------------------------------------------------------
# Take data along


def imagej():
    """Return a command that opens a file with ImageJ; None if ImageJ or a recent JDK is not installed."""
    library = Path("/usr/share/java/ij.jar")
    if not library.exists() or not shutil.which("javac") or (version_of_java() or 0) < 17:
        return None
    return ["java", "-Djava.awt.headless=true", "-cp", library, Path(__file__).with_name("ImageJReader.java")]


def test_a_calibrated_part_is_opened_in_imagej_and_numpy(browser, demo, tmp_path):
    em = stored(support.DEMO, "volume/em/s0")
    with Visit(browser, demo, EM) as visit, Job("Open a part in ImageJ and NumPy") as job:
        page = visit.page
        job.click(page.get_by_role("button", name="Download…"))
        job.click(page.get_by_role("button", name="Draw a box…"))
        job.drag(page, visit.point(30, 40), visit.point(90, 120))
        # The lower edge of the box in the plane of x and z.
        x, y = visit.point(60, 19, plane=2)
        below = (visit.point(60, 20, plane=2)[1] - y) / 2
        job.drag(page, (x, y + below), (x, visit.point(60, 29, plane=2)[1] + below))
        job.click(page.get_by_role("button", name="Use this box"))
        link = page.locator("dialog.download footer a")
        expect(link).to_have_attribute("href", re.compile("format=tiff"))
        tiff = saved(page, tmp_path, lambda: job.click(link))
        ranges = re.fullmatch(r"volume_em_s0_x(\d+)-(\d+)_y(\d+)-(\d+)_z(\d+)-(\d+)\.tif", tiff.name)
        assert ranges, tiff.name
        box = [int(number) for number in ranges.groups()]
        assert box[:4] == pytest.approx([30, 91, 40, 121], abs=1) and box[4:] == pytest.approx([19, 30], abs=1)
        part = em[box[0] : box[1], box[2] : box[3], box[4] : box[5]]

        with tifffile.TiffFile(tiff) as opened:
            np.testing.assert_array_equal(opened.asarray().T, part)
            assert opened.is_imagej and opened.imagej_metadata["unit"] == "nm" and opened.imagej_metadata["spacing"] == 32
            for name in ("XResolution", "YResolution"):
                assert np.divide(*opened.pages[0].tags[name].value) == pytest.approx(1 / 8)
        if reader := imagej():
            printed = job.command(*reader, tiff, tmp_path / "elements").split()
            assert printed == [*map(str, part.shape[:2]), "1", str(part.shape[2]), "1", "8.0", "8.0", "32.0", "nm"]
            np.testing.assert_array_equal(np.fromfile(tmp_path / "elements", "u1").reshape(part.shape[::-1]).T, part)
        else:
            job.step("ImageJ, which is not installed (Debian: imagej, with a JDK), would open the file")

        job.click(page.locator("dialog.download label", has=page.get_by_role("radio", name="NPY", exact=True)))
        expect(link).to_have_attribute("href", re.compile("format=npy"))
        array = saved(page, tmp_path, lambda: job.click(link))
        job.names["np"] = np
        job.line(f"a = np.load({str(array)!r})")
        np.testing.assert_array_equal(job.names["a"], part)


def test_a_thumbnail_is_shown_in_a_wiki(browser, demo, tmp_path):
    with Job("Show a thumbnail in a wiki or README") as job:
        html = f'<img alt="EM" src="{demo.url}thumbnail/volume/em">'
        job.step(html)
    support.write(tmp_path / "index.html", f"<!doctype html><p>Our data: {html}</p>")
    # The wiki has another origin.
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as wiki:
        threading.Thread(target=wiki.serve_forever, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{wiki.server_port}/")
        size = "async (image) => { await image.decode(); return [image.naturalWidth, image.naturalHeight]; }"
        width, height = page.locator("img").evaluate(size)
        context.close()
        wiki.shutdown()
    assert width == height <= 256
    answer = demo.get("/thumbnail/volume/em")
    assert answer.status == 200 and answer["content-type"] == "image/png"
    picture = np.asarray(Image.open(io.BytesIO(answer.body)).convert("L")).astype(float)
    assert picture.shape == (height, width)
    # It is a plane in the middle of the volume.
    em = stored(support.DEMO, "volume/em/s0")
    planes = [np.asarray(Image.fromarray(em[:, :, z].T).resize((width, height))) for z in range(15, 25)]
    assert max(np.corrcoef(picture.ravel(), plane.ravel())[0, 1] for plane in planes) > 0.9


# Runs a program with a stand-in for napari, which keeps what it would show, and one for its plug-in, which reads with
# ome-zarr. Both are too large for a test. The page's program was tried with napari 0.9.2 and napari-ome-zarr 0.10.0.
NAPARI = """
import json, sys, types
import numpy as np

added = []

def napari_get_reader(url):
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    def read(url):
        for node in Reader(parse_url(url))():
            scale = node.metadata["coordinateTransformations"][0][0]["scale"]
            yield node.data, {"name": node.metadata["name"], "scale": scale}, "image"

    return read

sys.modules["napari_ome_zarr"] = types.SimpleNamespace(napari_get_reader=napari_get_reader)

class Viewer:
    def add_image(self, data, **options):
        levels = [np.asarray(level) for level in data]
        options = {key: value for key, value in options.items() if key in ("name", "scale", "channel_axis")}
        added.append([[level.shape for level in levels], [int(level.sum(dtype="u8")) for level in levels], options])

napari = types.ModuleType("napari")
napari.Viewer, napari.run = Viewer, lambda: None
sys.modules["napari"] = napari
exec(sys.stdin.read(), {"__name__": "__main__"})
print(json.dumps(added, default=lambda value: np.asarray(value).tolist()))
"""


def test_an_image_is_opened_in_napari(browser, demo):
    if not ZARR_3.exists():
        pytest.skip("there is no tests/.venv-zarr3, which tests/run makes")
    with Visit(browser, demo, EM, permissions=["clipboard-read", "clipboard-write"]) as visit, Job("Open an image in napari") as job:
        job.click(visit.page.get_by_role("tab", name="napari"))
        job.click(visit.page.get_by_role("button", name="Copy the code for napari"))
        visit.page.wait_for_selector("button:has-text('Copied')")
        code = visit.page.evaluate("navigator.clipboard.readText()")
        job.step("paste the program into Python")
        done = subprocess.run([ZARR_3, "-c", NAPARI], input=code, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    [[shapes, sums, options]] = json.loads(done.stdout.splitlines()[-1])
    levels = [stored(support.DEMO, f"volume/em/s{n}") for n in range(3)]
    assert shapes == [list(level.shape[::-1]) for level in levels]
    assert sums == [int(level.sum(dtype="u8")) for level in levels]
    assert options["name"] == "em" and options["scale"] == [32, 8, 8]


# ---------------------------------------------------------------------------------------------------
# Serve


def test_a_container_is_protected_and_opened_with_a_token(browser, tmp_path):
    array = waves(64, 48, 20)
    support.write_dataset(tmp_path / "em.n5/volume", array, (32, 32, 10), "gzip")
    context = browser.new_context()
    page = context.new_page()
    with Job("Protect with a token, and open with it") as job:
        token, line = job.command(support.binary(), "token", "ann").split("\n")[:2]
        job.append(tmp_path / "tokens", line)
        with job.serve(tmp_path / "em.n5", "--set", f"access.tokens={tmp_path}/tokens", "--set", 'access.rules=["/ = ann"]') as server:
            assert job.open(page, f"{server.url}volume/").status == 401
            assert "A token is needed here" in page.text_content("h1")
            expect(page.locator("input[name=token]")).to_be_focused()
            job.type(page, token)
            job.press(page, "Enter")
            page.wait_for_selector(READY)
            page.wait_for_selector(".plane-0 canvas[data-path]")
            pixels = page.eval_on_selector(".plane-0 canvas", f"plane => ({PIXELS})(plane.tiles()[0].canvas)")
            grey = array_of(pixels)[..., 0].astype(float)
            assert np.corrcoef(grey.ravel(), array[:, :, 9].T.ravel())[0, 1] > 0.999
            assert server.get("/slice/volume?size=1,1,1").status == 401
            context.close()


def test_a_damaged_block_is_noticed(browser, tmp_path):
    dataset = support.write_dataset(tmp_path / "em", waves(256, 192, 40), (64, 64, 20), "gzip")
    support.write_dataset(tmp_path / "other", waves(64, 64, 20), (64, 64, 20), "gzip")
    damage(dataset, 1, 2, 0)
    with support.Server(tmp_path) as server:
        visit = Visit(browser, server)
        with Job("Notice a damaged block") as job:
            job.click(visit.page.locator("#entries a", has_text="em/"))
            visit.page.wait_for_url("**/em/")
            visit.ready()
            assert visit.text(".damage").startswith("Block 1, 2, 0 (em/1/2/0) is damaged: "), visit.text(".damage")
            assert is_hatched(colour_at(visit, 96, 160)) and not is_hatched(colour_at(visit, 30, 30))
        visit.context.close()
    # The same from a shell, for all blocks.
    done = subprocess.run([support.binary(), "verify", tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "em/1/2/0" in done.stdout, done


class Network:
    """Two network namespaces, of the server's machine and of a colleague's, with a cable between them."""

    SERVER = "10.77.0.1"

    def __init__(self):
        self.machines = []
        try:
            for _ in range(2):
                self.machines.append(subprocess.Popen(["unshare", "--net", "sleep", "600"], stderr=subprocess.PIPE))
            for machine in self.machines:
                self.wait_until_separate(machine)
            ours, theirs = (str(machine.pid) for machine in self.machines)
            self.run(0, "ip", "link", "add", "lan", "type", "veth", "peer", "name", "lan", "netns", theirs)
            for number, address in enumerate((self.SERVER, "10.77.0.2")):
                self.run(number, "ip", "link", "set", "lo", "up")
                self.run(number, "ip", "address", "add", f"{address}/24", "dev", "lan")
                self.run(number, "ip", "link", "set", "lan", "up")
            self.run(0, "ip", "route", "add", "default", "via", "10.77.0.2")
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            pytest.skip(f"there are no network namespaces here: {getattr(error, 'stderr', None) or error}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for machine in self.machines:
            machine.kill()
            machine.wait()
            machine.stderr.close()

    def wait_until_separate(self, machine):
        """Wait until a process has left the namespace of this test."""
        own = os.readlink("/proc/self/ns/net")
        until = time.monotonic() + 60
        while machine.poll() is None and os.readlink(f"/proc/{machine.pid}/ns/net") == own:
            assert time.monotonic() < until
            time.sleep(0.01)
        if machine.poll() is not None:
            raise OSError(machine.stderr.read().decode().strip())

    def inside(self, number, *command):
        """Return a command that runs in a namespace."""
        return ["nsenter", "--net", f"--target={self.machines[number].pid}", *command]

    def run(self, number, *command):
        subprocess.run(self.inside(number, *command), check=True, capture_output=True, text=True, timeout=60)


def test_a_folder_of_containers_is_served_to_other_machines(browser, tmp_path):
    data = tmp_path / "data"
    array = waves(64, 48, 20)
    support.write_dataset(data / "em.n5/volume", array, (32, 32, 10), "gzip")
    support.write(data / "em.n5/attributes.json", {"n5": "4.0.0", "title": "Mouse brain"})
    support.write_dataset(data / "seg.n5/cells", array.astype("uint64"), (32, 32, 10), "gzip")
    with Network() as network, Job("Serve a folder to other machines") as job:
        program, *inside = network.inside(0, support.binary())
        with job.serve(*inside, data, program=Path(program), listen="0.0.0.0:0") as server:
            printed = server.process.stdout.readline().decode()
            address = re.search(rf"from other machines, probably: (http://{network.SERVER}:\d+/)$", printed.strip())
            assert address, printed
            chromium = support.write(tmp_path / "chromium", f'#!/bin/sh\nexec {" ".join(network.inside(1, CHROMIUM))} "$@"\n')
            chromium.chmod(0o755)
            elsewhere = browser.browser_type.launch(executable_path=chromium, args=["--no-sandbox"])
            page = elsewhere.new_page()
            job.open(page, address[1])
            expect(page.locator(".gallery li")).to_have_count(2, timeout=60_000)
            expect(page.locator(".gallery li").nth(0)).to_contain_text("Mouse brain")
            expect(page.locator(".gallery canvas, .gallery img")).to_have_count(2, timeout=60_000)
            job.click(page.locator(".gallery a", has_text="Mouse brain"))
            page.wait_for_url(f"{address[1]}**em.n5/")
            page.wait_for_selector(READY)
            assert page.text_content("h1") == "em.n5"
            elsewhere.close()


