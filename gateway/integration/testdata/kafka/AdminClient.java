import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;

/**
 * Java's admin client below a quota of mutations. After each step it prints its name, the milliseconds since the first began, what came of it, and how
 * many milliseconds it was told to wait. Arguments: where to bootstrap, and the client id.
 */
public class AdminClient {
	private static long began;

	public static void main(String[] args) throws InterruptedException, ExecutionException {
		Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "client.id", args[1]);
		CreateTopicsOptions once = new CreateTopicsOptions().retryOnQuotaViolation(false);
		try (Admin admin = Admin.create(settings); Admin other = Admin.create(settings)) {
			other.listTopics().names().get(); // so that the time of its step is not spent on connecting
			began = System.nanoTime();
			tell("created", admin.createTopics(topic("admin", 26), once).all());
			tell("refused", admin.createTopics(topic("admin-refused", 1), once).all());
			tell("late", other.createTopics(topic("admin-late", 1), new CreateTopicsOptions().timeoutMs(6000)).all());
			tell("retried", admin.createTopics(topic("admin-retried", 2)).all());
			tell("grown", admin.createPartitions(Map.of("admin-retried", NewPartitions.increaseTo(4))).all());
			tell("deleted", admin.deleteTopics(List.of("admin")).all());
		}
	}

	private static List<NewTopic> topic(String name, int partitions) {
		return List.of(new NewTopic(name, partitions, (short) 1));
	}

	private static void tell(String step, KafkaFuture<Void> future) throws InterruptedException {
		String result = "ok";
		int told = 0;
		try {
			future.get();
		} catch (ExecutionException e) {
			result = e.getCause().getClass().getSimpleName();
			if (e.getCause() instanceof ThrottlingQuotaExceededException quota) {
				told = quota.throttleTimeMs();
			}
		}
		System.out.println(step + " " + (System.nanoTime() - began) / 1_000_000 + " " + result + " " + told);
	}
}
