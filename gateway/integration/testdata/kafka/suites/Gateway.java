import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyStore;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.test.TestSslUtils;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** The gateway under test, as a process. The property weir names its program, and weir.log where its log goes. */
class Gateway {
	/** Ids of nodes are below it. */
	private static final int NODES = 10;

	private Path folder;
	private Process process;
	private List<String> brokers = List.of();
	private String addresses;
	private String login = "";
	private String password = "";
	private String certificate; // null: no TLS
	private String privateKey;
	private boolean quotas;

	/** Lets the gateway log in at the brokers. */
	Gateway as(String mechanism, String user, String secret) {
		login = mechanism + ", user: " + user;
		password = secret;
		return this;
	}

	/**
	 * Gives brokers and the gateway a certificate that all trust by this file. Those of the tests have the name in the subject, where Go reads none.
	 */
	void certify(Seq<Properties> brokers, File trusted) {
		try {
			KeyPair pair = TestSslUtils.generateKeyPair("RSA");
			X509Certificate own = new TestSslUtils.CertificateBuilder().sanDnsNames("localhost").generate("CN=localhost", pair);
			KeyStore store = KeyStore.getInstance("JKS");
			try (InputStream in = new FileInputStream(trusted)) {
				store.load(in, TestSslUtils.TRUST_STORE_PASSWORD.toCharArray());
			}
			store.setCertificateEntry("weir", own);
			try (OutputStream out = new FileOutputStream(trusted)) {
				store.store(out, TestSslUtils.TRUST_STORE_PASSWORD.toCharArray());
			}
			File key = File.createTempFile("weir", ".jks");
			key.deleteOnExit();
			Password secret = new Password("secret");
			TestSslUtils.createKeyStore(key.getPath(), secret, secret, "broker", pair.getPrivate(), own);
			for (Properties broker : CollectionConverters.asJava(brokers)) {
				for (String inline : List.of("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates")) {
					broker.remove(inline);
				}
				broker.put("ssl.keystore.type", "JKS");
				broker.put("ssl.keystore.location", key.getPath());
				broker.put("ssl.keystore.password", secret);
				broker.put("ssl.key.password", secret);
				broker.put("ssl.truststore.type", "JKS");
				broker.put("ssl.truststore.location", trusted.getPath());
				broker.put("ssl.truststore.password", new Password(TestSslUtils.TRUST_STORE_PASSWORD));
			}
			certificate = pem("CERTIFICATE", own.getEncoded());
			privateKey = pem("PRIVATE KEY", pair.getPrivate().getEncoded());
		} catch (IOException e) {
			throw new UncheckedIOException(e);
		} catch (GeneralSecurityException e) {
			throw new IllegalStateException(e);
		}
	}

	/** Has the gateway count all that it can count, and keep the quotas that clients set. There are no others. */
	Gateway keepsQuotas() {
		quotas = true;
		return this;
	}

	/** Returns where a gateway before these brokers accepts clients of each. The one that runs is kept as long as it knows one of them. */
	synchronized String before(String bootstrap) {
		List<String> now = Arrays.asList(bootstrap.split(","));
		if (process == null || Collections.disjoint(brokers, now)) {
			close();
			brokers = now;
			try {
				start();
			} catch (IOException e) {
				throw new UncheckedIOException(e);
			}
		}
		return addresses;
	}

	/** Returns a cluster whose clients bootstrap at the gateway, which stays until the end of all tests. */
	ClusterInstance before(ClusterInstance cluster) {
		InvocationHandler handler = (Object proxy, Method method, Object[] args) -> {
			try {
				if (method.getName().equals("bootstrapServers")) {
					return before(cluster.bootstrapServers());
				}
				if (method.getName().equals("admin")) { // it asks for bootstrapServers
					return InvocationHandler.invokeDefault(proxy, method, args);
				}
				return method.invoke(cluster, args);
			} catch (InvocationTargetException e) {
				throw e.getCause();
			}
		};
		Runtime.getRuntime().addShutdownHook(new Thread(this::close));
		return (ClusterInstance) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {ClusterInstance.class}, handler);
	}

	private void start() throws IOException {
		folder = Files.createTempDirectory("weir-suites-");
		int port = ports();
		Files.writeString(folder.resolve("weir.yaml"), settings(port));
		process = new ProcessBuilder(System.getProperty("weir"), "run", "--config", "weir.yaml").directory(folder.toFile()).redirectErrorStream(true)
			.redirectOutput(ProcessBuilder.Redirect.appendTo(new File(System.getProperty("weir.log")))).start();
		List<String> nodes = new ArrayList<>(); // their ids begin with 0
		for (int id = 0; id < brokers.size(); id++) {
			await(port + 1 + id);
			nodes.add("localhost:" + (port + 1 + id));
		}
		addresses = String.join(",", nodes);
	}

	private void await(int port) throws IOException {
		for (long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);; LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(20))) {
			try (Socket probe = new Socket()) {
				probe.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
				return;
			} catch (IOException e) {
				if (!process.isAlive() || System.nanoTime() > end) {
					throw e;
				}
			}
		}
	}

	private String settings(int port) throws IOException {
		StringBuilder text = new StringBuilder("admin: {address: \"off\"}\nkafka:\n  main:\n");
		text.append("    bootstrap: [" + brokers.stream().map(b -> '"' + b + '"').collect(Collectors.joining(", ")) + "]\n");
		text.append("    nodes: {ports: " + (port + 1) + "-" + (port + NODES) + ", advertise: localhost}\n");
		String tls = "";
		if (certificate != null) {
			Files.writeString(folder.resolve("cert.pem"), certificate);
			Files.writeString(folder.resolve("key.pem"), privateKey);
			text.append("    tls: {ca: cert.pem, cert: cert.pem, key: key.pem}\n");
			tls = ", tls: {cert: cert.pem, key: key.pem}";
		}
		text.append("    listen: {address: \"127.0.0.1:" + port + "\"" + tls + "}\n");
		if (!login.isEmpty()) {
			Files.writeString(folder.resolve("password"), password);
			text.append("    sasl: {mechanism: " + login + ", password_file: password}\n");
		}
		if (quotas) {
			text.append("    quotas: {mutations: topics, produce: in, fetch: out, connections: dial}\n");
			text.append("gates: {topics: {quota: {debt: true}}, in: {quota: {}}, out: {quota: {}}, dial: {quota: {queue: {len: 1000, max_wait: 20s}}}}\n");
			text.append("runtime_quotas: {file: quotas.json}\n");
		}
		return text.toString();
	}

	private static String pem(String kind, byte[] bytes) {
		return "-----BEGIN " + kind + "-----\n" + Base64.getMimeEncoder().encodeToString(bytes) + "\n-----END " + kind + "-----\n";
	}

	/** Returns a port that is free, as are those of the nodes behind it. Servers that take any port get one from the kernel, far above. */
	private static int ports() {
		while (true) {
			int port = ThreadLocalRandom.current().nextInt(20_000, 25_000 - NODES);
			int free = 0;
			for (; free <= NODES; free++) {
				try (ServerSocket probe = new ServerSocket(port + free, 1, InetAddress.getLoopbackAddress())) {
					continue;
				} catch (IOException e) {
					break;
				}
			}
			if (free > NODES) {
				return port;
			}
		}
	}

	/** Ends the gateway, if one runs. */
	synchronized void close() {
		if (process == null) {
			return;
		}
		process.destroyForcibly().onExit().join();
		process = null;
		for (File file : folder.toFile().listFiles()) {
			file.delete();
		}
		folder.toFile().delete();
	}
}
