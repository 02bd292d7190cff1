"""confluent-kafka: makes a topic, fills it in a transaction, and reads it as a group. Arguments: where to bootstrap, the topic, how many records."""

import sys

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(60)

producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "compression.type": "gzip"})
producer.init_transactions(60)
producer.begin_transaction()
for i in range(count):
    producer.produce(topic, value=str(i))
producer.commit_transaction(60)

consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
consumer.subscribe([topic])
seen = set()
while len(seen) < count:
    message = consumer.poll(60)
    if message is None or message.error():
        sys.exit(f"{len(seen)} of {count}, and then {message and message.error()}")
    seen.add(int(message.value()))
consumer.commit(asynchronous=False)
consumer.close()
print(sorted(seen) == list(range(count)))
