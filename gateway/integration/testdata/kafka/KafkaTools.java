import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's tools one after another in one Java machine: to start one costs more than what it does. Each argument is a line, the class of a tool and what
 * that is given. It prints the line behind a dollar, what the tool says to it, and the exit status if that is not 0.
 * Some lines have a pattern behind a newline. Such a tool runs again until it says so, for at most a minute, and its last answer is printed.
 */
public class KafkaTools {
	// Tools keep the streams that they find first.
	private static final ByteArrayOutputStream output = new ByteArrayOutputStream(), errors = new ByteArrayOutputStream();

	public static void main(String[] lines) throws Exception {
		PrintStream out = System.out;
		System.setOut(new PrintStream(output, true));
		System.setErr(new PrintStream(errors, true));
		for (String argument : lines) {
			String[] parts = argument.split("\n", 2);
			String line = parts[0];
			int status = run(line.split(" "));
			long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);
			while (parts.length == 2 && (status != 0 || !Pattern.compile(parts[1]).matcher(output.toString()).find()) && System.nanoTime() < end) {
				output.reset();
				errors.reset();
				status = run(line.split(" "));
			}
			out.print("$ " + line + "\n" + output);
			if (status != 0) {
				out.print("exit status " + status + ": " + errors);
			}
			output.reset();
			errors.reset();
		}
		out.flush();
		Runtime.getRuntime().halt(0); // threads of tools that have failed may be left
	}

	private static int run(String[] words) throws Exception {
		Method main = Class.forName(words[0]).getMethod("main", String[].class);
		CompletableFuture<Integer> status = new CompletableFuture<>();
		Queue<Runnable> atExit = new ConcurrentLinkedQueue<>();
		Exit.setShutdownHookAdder((name, hook) -> atExit.add(hook));
		Exit.setExitProcedure((code, message) -> {
			status.complete(code);
			while (true) { // a process would end here
				LockSupport.park();
			}
		});
		Thread tool = new Thread(() -> {
			try {
				main.invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
				status.complete(0);
			} catch (InvocationTargetException e) {
				e.getCause().printStackTrace();
				status.complete(1);
			} catch (IllegalAccessException e) {
				status.completeExceptionally(e);
			}
		});
		tool.setDaemon(true);
		tool.start();
		int code = status.get();
		atExit.forEach(Runnable::run);
		return code;
	}
}
