import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Reads a row of blocks of a sparse dataset as N5 4.x for Java does (HttpKeyValueAccess). It uses HttpURLConnection,
 * which reuses connections by itself. The body of a 404 for a missing block is left unread.
 *
 * <p>Arguments: URL of the dataset with a trailing slash, number of blocks, number of threads, GET or HEAD. Prints the
 * numbers of found, missing and failed blocks, and the milliseconds. The first failure is printed to standard error.
 */
public class SparseReader {
	public static void main(final String[] args) throws Exception {
		final String dataset = args[0], method = args[3];
		final int blocks = Integer.parseInt(args[1]), threads = Integer.parseInt(args[2]);
		final AtomicInteger found = new AtomicInteger(), missing = new AtomicInteger(), failed = new AtomicInteger();
		final ExecutorService pool = Executors.newFixedThreadPool(threads);
		final List<Future<?>> tasks = new ArrayList<>();
		final long begin = System.nanoTime();
		for (int i = 0; i < blocks; ++i) {
			final URL url = new URL(dataset + i + "/0");
			tasks.add(pool.submit(() -> {
				try {
					final boolean exists = method.equals("HEAD") ? exists(url) : read(url);
					(exists ? found : missing).incrementAndGet();
				} catch (final IOException fault) {
					if (failed.getAndIncrement() == 0)
						System.err.println(url + ": " + fault);
				}
			}));
		}
		for (final Future<?> task : tasks)
			task.get();
		pool.shutdown();
		System.out.println(found + " " + missing + " " + failed + " " + (System.nanoTime() - begin) / 1_000_000);
	}

	private static HttpURLConnection connect(final URL url, final String method) throws IOException {
		final HttpURLConnection connection = (HttpURLConnection) url.openConnection();
		connection.setRequestMethod(method);
		connection.setConnectTimeout(5000);
		connection.setReadTimeout(30000);
		return connection;
	}

	/** Sends HEAD and evaluates only the status. */
	private static boolean exists(final URL url) throws IOException {
		final int status = connect(url, "HEAD").getResponseCode();
		if (status != 404 && status != 200)
			throw new IOException("status " + status);
		return status == 200;
	}

	/** Sends GET. A missing block is a FileNotFoundException; the body of its answer is left unread. */
	private static boolean read(final URL url) throws IOException {
		final HttpURLConnection connection = connect(url, "GET");
		try (InputStream stream = connection.getInputStream()) {
			stream.readAllBytes();
			return true;
		} catch (final FileNotFoundException hole) {
			if (connection.getResponseCode() != 404)
				throw new IOException("status " + connection.getResponseCode());
			return false;
		}
	}
}
