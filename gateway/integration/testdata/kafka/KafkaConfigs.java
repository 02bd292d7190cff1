import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import kafka.admin.ConfigCommand;
import org.apache.kafka.common.utils.Exit;

/**
 * kafka-configs with one line of arguments after another, in one Java machine: to start one costs more than what it does. The first argument is where
 * to bootstrap, and each of the others is such a line. It prints the line, what the tool says to it, and the exit status if that is not 0.
 */
public class KafkaConfigs {
	// The tool keeps the stream that it finds first.
	private static final ByteArrayOutputStream output = new ByteArrayOutputStream(), errors = new ByteArrayOutputStream();

	public static void main(String[] args) throws Exception {
		PrintStream out = System.out;
		System.setOut(new PrintStream(output, true));
		System.setErr(new PrintStream(errors, true));
		for (int i = 1; i < args.length; i++) {
			int status = run(("--bootstrap-server " + args[0] + " " + args[i]).split(" "));
			out.print("$ kafka-configs " + args[i] + "\n" + output);
			if (status != 0) {
				out.print("exit status " + status + ": " + errors);
			}
			output.reset();
			errors.reset();
		}
		out.flush();
		Runtime.getRuntime().halt(0); // threads of commands that have failed may be left
	}

	private static int run(String[] args) throws Exception {
		CompletableFuture<Integer> status = new CompletableFuture<>();
		Exit.setExitProcedure((code, message) -> {
			status.complete(code);
			while (true) { // a process would end here
				LockSupport.park();
			}
		});
		Thread command = new Thread(() -> {
			ConfigCommand.main(args);
			status.complete(0);
		});
		command.setUncaughtExceptionHandler((thread, e) -> {
			e.printStackTrace();
			status.complete(1);
		});
		command.setDaemon(true);
		command.start();
		return status.get();
	}
}
