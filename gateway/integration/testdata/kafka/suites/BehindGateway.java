import java.util.Properties;
import kafka.api.DelegationTokenEndToEndAuthorizationTest;
import kafka.api.PlaintextAdminIntegrationTest;
import kafka.api.PlaintextConsumerTest;
import kafka.api.PlaintextProducerSendTest;
import kafka.api.SaslOAuthBearerSslEndToEndAuthorizationTest;
import kafka.api.SaslPlainSslEndToEndAuthorizationTest;
import kafka.api.SaslScramSslEndToEndAuthorizationTest;
import kafka.api.TransactionsTest;
import kafka.security.JaasTestUtils;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.security.plain.PlainLoginModule;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.server.quota.ClientQuotasRequestTest;
import org.junit.jupiter.api.AfterEach;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Kafka's own tests with a gateway before the brokers that each has started. All their clients ask one method where to bootstrap. */
class BehindGateway {
	static class Transactions extends TransactionsTest {
		private final Gateway gateway = new Gateway();

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	static class ProducerSend extends PlaintextProducerSendTest {
		private final Gateway gateway = new Gateway();

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	static class Consumer extends PlaintextConsumerTest {
		private final Gateway gateway = new Gateway();

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	static class AdminIntegration extends PlaintextAdminIntegrationTest {
		private final Gateway gateway = new Gateway();

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	static class SaslPlain extends SaslPlainSslEndToEndAuthorizationTest {
		private final Gateway gateway = new Gateway().as("plain", JaasTestUtils.KAFKA_PLAIN_ADMIN, "broker-password");

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		@Override
		public void modifyConfigs(Seq<Properties> brokers) {
			super.modifyConfigs(brokers);
			gateway.certify(brokers, trustStoreFile().get());
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	static class SaslScram extends SaslScramSslEndToEndAuthorizationTest {
		private final Gateway gateway = new Gateway().as("scram-sha-256", JaasTestUtils.KAFKA_SCRAM_ADMIN, JaasTestUtils.KAFKA_SCRAM_ADMIN_PASSWORD);

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		@Override
		public void modifyConfigs(Seq<Properties> brokers) {
			super.modifyConfigs(brokers);
			gateway.certify(brokers, trustStoreFile().get());
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	static class SaslOAuthBearer extends SaslOAuthBearerSslEndToEndAuthorizationTest {
		private static final String PASSWORD = "secret";
		private final Gateway gateway = new Gateway().as("plain", JaasTestUtils.KAFKA_PLAIN_ADMIN, PASSWORD);

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		/** The gateway itself logs in by PLAIN, which the brokers have beside OAUTHBEARER for that alone. */
		@Override
		public void modifyConfigs(Seq<Properties> brokers) {
			super.modifyConfigs(brokers);
			gateway.certify(brokers, trustStoreFile().get());
			for (Properties broker : CollectionConverters.asJava(brokers)) {
				broker.put("sasl.enabled.mechanisms", kafkaClientSaslMechanism() + ",PLAIN");
				broker.put(listenerName().saslMechanismConfigPrefix("PLAIN") + "sasl.jaas.config",
					PlainLoginModule.class.getName() + " required user_" + JaasTestUtils.KAFKA_PLAIN_ADMIN + "=\"" + PASSWORD + "\";");
			}
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	static class DelegationToken extends DelegationTokenEndToEndAuthorizationTest {
		private final Gateway gateway = new Gateway().as("scram-sha-256", JaasTestUtils.KAFKA_SCRAM_ADMIN, JaasTestUtils.KAFKA_SCRAM_ADMIN_PASSWORD);

		@Override
		public String bootstrapServers(ListenerName listener) {
			return gateway.before(super.bootstrapServers(listener));
		}

		@Override
		public void modifyConfigs(Seq<Properties> brokers) {
			super.modifyConfigs(brokers);
			gateway.certify(brokers, trustStoreFile().get());
		}

		@Override
		@AfterEach
		public void tearDown() {
			super.tearDown();
			gateway.close();
		}
	}

	/** Here the gateway keeps the quotas that clients set. */
	static class ClientQuotas extends ClientQuotasRequestTest {
		ClientQuotas(ClusterInstance cluster) {
			super(new Gateway().keepsQuotas().before(cluster));
		}
	}
}
