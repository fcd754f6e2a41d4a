"""Calibrated stacks, colour pictures and thumbnails in other programs: tifffile, Pillow and, if installed, ImageJ."""

import io
import os
import shutil
import subprocess

import numpy as np
import pytest
import tifffile
from PIL import Image

import support

IMAGEJ_JARS = ["/usr/share/java/ij.jar", os.environ.get("N5_TEST_IMAGEJ", "")]

# Prints dimensions, calibration, display range and some voxels of an image, as ImageJ sees them.
READER = """
import ij.*;
import ij.io.Opener;
import ij.measure.Calibration;

public class ReadStack {
    public static void main(String[] files) {
        for (String file : files) {
            ImagePlus image = new Opener().openImage(file);
            Calibration c = image.getCalibration();
            StringBuilder line = new StringBuilder();
            for (int n : image.getDimensions()) line.append(n).append(' ');
            line.append(c.getUnits()).append(' ').append(c.pixelWidth).append(' ').append(c.pixelHeight).append(' ');
            line.append(c.pixelDepth).append(' ').append(c.frameInterval).append(' ');
            line.append(c.xOrigin).append(' ').append(c.yOrigin).append(' ').append(c.zOrigin).append(' ');
            line.append(image.getDisplayRangeMin()).append(' ').append(image.getDisplayRangeMax());
            for (int t = 1; t <= image.getNFrames(); t++)
                for (int z = 1; z <= image.getNSlices(); z++)
                    for (int ch = 1; ch <= image.getNChannels(); ch++)
                        line.append(' ').append((long) image.getStack().getProcessor(image.getStackIndex(ch, z, t)).getf(1, 1));
            System.out.println(line);
        }
    }
}
"""


def hyperstack() -> np.ndarray:
    """Return `array[x, y, z, c, t]`."""
    return support.counting(8, 6, 3, 2, 4)


AXES = ["x", "y", "z", "c", "t"]
CALIBRATION = {"units": ["um", "um", "um", "", "ms"], "resolution": [0.325, 0.65, 2, 1, 250]}


#: Prints the name, the brightest colour and the displayed range of every channel.
CHANNEL_READER = """
import ij.*;
import java.io.PrintStream;

public class ReadChannels {
    public static void main(String[] files) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        ImagePlus image = IJ.openImage(files[0]);
        for (int channel = 1; channel <= image.getNChannels(); channel++) {
            image.setPosition(channel, 1, 1);
            ij.process.LUT table = ((CompositeImage) image).getChannelLut(channel);
            out.println(image.getStack().getSliceLabel(image.getCurrentSlice()) + " " + table.getRed(255) + ","
                + table.getGreen(255) + "," + table.getBlue(255) + " " + table.min + " " + table.max);
        }
    }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    array = hyperstack()
    support.write_dataset(root / "xyzct", array, (8, 4, 2, 1, 2), "gzip", axes=AXES, **CALIBRATION)
    order = [4, 3, 2, 1, 0]
    reversed_lists = {key: [values[n] for n in order] for key, values in {"axes": AXES, **CALIBRATION}.items()}
    support.write_dataset(root / "tczyx", array.transpose(order), (2, 1, 2, 4, 8), "gzip", **reversed_lists)
    support.write_dataset(root / "plain", array[..., 0, 0], (8, 4, 2), "gzip")
    support.write_dataset(root / "nm", array[..., 0, 0], (8, 4, 2), "raw", units=["nm"] * 3, resolution=[4, 4, 40])
    ramp = np.arange(40 * 30 * 3, dtype="uint16").reshape(40, 30, 3, order="F")
    support.write_dataset(root / "rgb", (ramp % 256).astype("uint8"), (16, 16, 2), "gzip", axes=["x", "y", "c"])
    support.write_dataset(root / "float", np.where(ramp == 7, np.nan, ramp).astype("float32")[..., 0], (16, 16), "raw")
    cells = ramp.reshape(40, 30, 3)[:16, :12]
    axes = [{"name": name, "type": kind} for name, kind in (("c", "channel"), ("y", "space"), ("x", "space"))]
    channels = [
        {"label": label, "color": color, "window": {"start": low, "end": high}}
        for label, color, low, high in (("DAPI", "0000FF", 100, 700), ("GFP", "00FF00", 5, 2600.5), ("m\u00dc", "FF8000", 0, 9000))
    ]
    scale = [{"type": "scale", "scale": [1, 0.5, 0.5]}]
    multiscales = [{"version": "0.4", "axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}]
    support.write(root / "cells" / "attributes.json", {"multiscales": multiscales, "omero": {"channels": channels}})
    support.write_dataset(root / "cells" / "0", cells, (8, 8, 1), "gzip")
    with support.Server(root) as server:
        yield server


def body(server, target: str) -> bytes:
    answer = server.get(target)
    assert answer.status == 200, answer.text()
    assert len(answer.body) == int(answer["content-length"])
    return answer.body


def test_tifffile_reads_a_hyperstack_with_its_calibration(server):
    with tifffile.TiffFile(io.BytesIO(body(server, "/slice/xyzct?format=tiff"))) as file:
        assert file.series[0].axes == "TZCYX"
        np.testing.assert_array_equal(file.asarray(), hyperstack().transpose(4, 2, 3, 1, 0))
        described = file.imagej_metadata
        assert (described["unit"], described["spacing"], described["finterval"]) == ("\\u00B5m", 2, 0.25)
        x, y = (file.pages[0].tags[name].value for name in ("XResolution", "YResolution"))
        assert (x, y) == ((40, 13), (20, 13))
    plain = tifffile.TiffFile(io.BytesIO(body(server, "/slice/plain?format=tiff")))
    assert "unit" not in plain.imagej_metadata and "XResolution" not in plain.pages[0].tags


@pytest.mark.parametrize("target", ["/slice/cells/0?format=tiff", "/slice/cells?level=0&format=tiff"])
def test_tifffile_reads_colours_windows_and_names_of_channels(server, target):
    with tifffile.TiffFile(io.BytesIO(body(server, target))) as file:
        described = file.imagej_metadata
        assert file.series[0].axes == "CYX" and file.asarray().shape == (3, 12, 16)
    assert described["Labels"] == ["DAPI", "GFP", "m\u00dc"]
    assert described["Ranges"] == (100.0, 700.0, 5.0, 2600.5, 0.0, 9000.0)
    brightest = [tuple(table[:, 255]) for table in described["LUTs"]]
    assert brightest == [(0, 0, 255), (0, 255, 0), (255, 128, 0)]
    assert all((table[:, 0] == 0).all() for table in described["LUTs"])


def test_imagej_reads_colours_windows_and_names_of_channels(server, tmp_path):
    jar = next((jar for jar in IMAGEJ_JARS if jar and os.path.exists(jar)), None)
    if jar is None or not shutil.which("javac"):
        pytest.skip("ImageJ (Debian's package imagej) or a JDK is not installed")
    (tmp_path / "cells.tif").write_bytes(body(server, "/slice/cells/0?format=tiff"))
    (tmp_path / "ReadChannels.java").write_text(CHANNEL_READER)
    subprocess.run(["javac", "-cp", jar, "ReadChannels.java"], cwd=tmp_path, check=True, timeout=120)
    command = ["java", "-Djava.awt.headless=true", "-Dfile.encoding=UTF-8", "-cp", f"{jar}:.", "ReadChannels", "cells.tif"]
    run = subprocess.run(command, cwd=tmp_path, check=True, timeout=120, capture_output=True, text=True)
    assert run.stdout.splitlines() == [
        "DAPI 0,0,255 100.0 700.0", "GFP 0,255,0 5.0 2600.5", "m\u00dc 255,128,0 0.0 9000.0",
    ]  # fmt: skip


def test_imagej_reads_dimensions_calibration_and_voxels(server, tmp_path):
    jar = next((jar for jar in IMAGEJ_JARS if jar and os.path.exists(jar)), None)
    if jar is None or not shutil.which("javac"):
        pytest.skip("ImageJ (Debian's package imagej) or a JDK is not installed")
    queries = {
        "whole": "xyzct?format=tiff",
        "reversed": "tczyx?format=tiff",
        "stepped": "xyzct?format=tiff&start=2,0,0,0,0&step=2,1,2,1,2",
        "nm": "nm?format=tiff&window=5,900",
        "plain": "plain?format=tiff",
        "plane": "nm?format=tiff&select=:,:,1",
    }
    for name, query in queries.items():
        (tmp_path / f"{name}.tif").write_bytes(body(server, f"/slice/{query}"))
    (tmp_path / "ReadStack.java").write_text(READER)
    subprocess.run(["javac", "-cp", jar, "ReadStack.java"], cwd=tmp_path, check=True, timeout=120)
    command = ["java", "-Djava.awt.headless=true", "-cp", f"{jar}:.", "ReadStack", *(f"{name}.tif" for name in queries)]
    run = subprocess.run(command, cwd=tmp_path, check=True, timeout=120, capture_output=True, text=True)
    lines = dict(zip(queries, (line.split() for line in run.stdout.splitlines()), strict=True))
    array = hyperstack()

    def voxels(a):
        return [str(a[1, 1, z, c, t]) for t in range(a.shape[4]) for z in range(a.shape[2]) for c in range(a.shape[3])]

    # Width, height, channels, slices, frames; unit, pixel size, frame interval, origin; display range.
    assert lines["whole"][:5] == ["8", "6", "2", "3", "4"]
    assert lines["whole"][5] in ("µm", "\\u00B5m", "um", "?m")
    assert np.allclose([float(n) for n in lines["whole"][6:13]], [0.325, 0.65, 2, 0.25, 0, 0, 0])
    assert lines["whole"][15:] == voxels(array)
    stepped = array[2::2, :, ::2, :, ::2]
    assert lines["stepped"][:5] == ["3", "6", "2", "2", "2"]
    assert np.allclose([float(n) for n in lines["stepped"][6:13]], [0.65, 0.65, 4, 0.5, -1, 0, 0])
    assert lines["stepped"][15:] == voxels(stepped)
    assert lines["nm"][5:9] == ["nm", "4.0", "4.0", "40.0"]
    assert lines["nm"][13:15] == ["5.0", "900.0"]
    assert lines["plane"][:9] == ["8", "6", "1", "1", "1", "nm", "4.0", "4.0", "1.0"]
    assert lines["plain"][5:9] == ["pixels", "1.0", "1.0", "1.0"]
    assert lines["reversed"][:13] == lines["whole"][:13]
    assert lines["reversed"][15:] == lines["whole"][15:]


def test_pillow_reads_colour_pictures(server):
    shown = np.asarray(Image.open(io.BytesIO(body(server, "/slice/rgb?format=png"))))
    elements = (np.arange(40 * 30 * 3) % 256).reshape(40, 30, 3, order="F").transpose(1, 0, 2)
    np.testing.assert_array_equal(shown, elements)
    jpeg = Image.open(io.BytesIO(body(server, "/slice/rgb?format=jpeg&colors=red,green,blue&window=0,255")))
    assert (jpeg.mode, jpeg.size) == ("RGB", (40, 30))
    # Each channel keeps the colour that it has among all of them.
    mixed = np.asarray(Image.open(io.BytesIO(body(server, "/slice/rgb?format=png&channels=0,2&window=0,255;255,0"))))
    expected = np.stack([elements[..., 0], 0 * elements[..., 1], 255 - elements[..., 2]], axis=-1)
    np.testing.assert_array_equal(mixed, expected)


def test_an_automatic_window_equals_numpy_percentiles(server):
    elements = np.arange(1200, dtype="float64")
    elements = np.delete(elements, 7)
    low, high = np.percentile(elements, [1, 99.9], method="inverted_cdf")
    automatic = body(server, "/slice/float?format=png&window=auto")
    assert automatic == body(server, f"/slice/float?format=png&window={low},{high}")


@pytest.mark.parametrize("accept", ["image/png", "image/jpeg"])
def test_pillow_reads_thumbnails(server, accept):
    answer = server.get("/thumbnail/nm?size=32", accept=accept)
    assert answer.status == 200 and answer["content-type"] == accept
    image = Image.open(io.BytesIO(answer.body))
    assert (image.mode, image.size) == ("L", (8, 6))
    # Physical extents decide: 2.6 by 3.9 micrometres.
    assert Image.open(io.BytesIO(body(server, "/thumbnail/xyzct?size=64"))).size == (8, 12)
    assert Image.open(io.BytesIO(body(server, "/thumbnail/"))).format == "PNG"
