import ij.IJ;
import ij.ImagePlus;
import ij.measure.Calibration;
import java.io.ByteArrayOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Opens an image of 8 bits with ImageJ, and prints its width, height, channels, slices, frames, voxel size and unit.
 *
 * <p>Arguments: the file, and a file for the elements, slice by slice.
 */
public class ImageJReader {
	public static void main(String[] arguments) throws Exception {
		ImagePlus image = IJ.openImage(arguments[0]);
		for (int length : image.getDimensions()) {
			System.out.println(length);
		}
		Calibration calibration = image.getCalibration();
		System.out.println(calibration.pixelWidth);
		System.out.println(calibration.pixelHeight);
		System.out.println(calibration.pixelDepth);
		System.out.println(calibration.getUnit());
		ByteArrayOutputStream elements = new ByteArrayOutputStream();
		for (int n = 1; n <= image.getStackSize(); n++) {
			elements.write((byte[]) image.getStack().getPixels(n));
		}
		Files.write(Path.of(arguments[1]), elements.toByteArray());
	}
}
