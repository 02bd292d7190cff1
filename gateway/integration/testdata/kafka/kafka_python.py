"""kafka-python: makes a topic, fills it, and reads it as a group. Arguments: where to bootstrap, the topic, how many records."""

import sys

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

admin = KafkaAdminClient(bootstrap_servers=bootstrap)
admin.create_topics([NewTopic(name=topic, num_partitions=3, replication_factor=1)])
admin.close()

producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip", acks="all")
for future in [producer.send(topic, str(i).encode()) for i in range(count)]:
    future.get(60)
producer.close()

consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
seen = set()
for message in consumer:
    seen.add(int(message.value))
    if len(seen) == count:
        break
consumer.commit()
consumer.close()
print(sorted(seen) == list(range(count)))
