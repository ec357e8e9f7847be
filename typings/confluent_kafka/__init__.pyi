# The library types itself, except what its administrative client returns (see admin) and a topic's id.

from confluent_kafka._model import ConsumerGroupState as ConsumerGroupState
from confluent_kafka._model import ConsumerGroupTopicPartitions as ConsumerGroupTopicPartitions
from confluent_kafka._model import ConsumerGroupType as ConsumerGroupType
from confluent_kafka._model import ElectionType as ElectionType
from confluent_kafka._model import IsolationLevel as IsolationLevel
from confluent_kafka._model import TopicCollection as TopicCollection
from confluent_kafka.cimpl import OFFSET_BEGINNING as OFFSET_BEGINNING
from confluent_kafka.cimpl import OFFSET_END as OFFSET_END
from confluent_kafka.cimpl import OFFSET_INVALID as OFFSET_INVALID
from confluent_kafka.cimpl import OFFSET_STORED as OFFSET_STORED
from confluent_kafka.cimpl import TIMESTAMP_CREATE_TIME as TIMESTAMP_CREATE_TIME
from confluent_kafka.cimpl import TIMESTAMP_LOG_APPEND_TIME as TIMESTAMP_LOG_APPEND_TIME
from confluent_kafka.cimpl import TIMESTAMP_NOT_AVAILABLE as TIMESTAMP_NOT_AVAILABLE
from confluent_kafka.cimpl import Consumer as Consumer
from confluent_kafka.cimpl import KafkaError as KafkaError
from confluent_kafka.cimpl import KafkaException as KafkaException
from confluent_kafka.cimpl import Message as Message
from confluent_kafka.cimpl import Producer as Producer
from confluent_kafka.cimpl import ShareConsumer as ShareConsumer
from confluent_kafka.cimpl import TopicPartition as TopicPartition
from confluent_kafka.deserializing_consumer import DeserializingConsumer as DeserializingConsumer

from . import admin as admin

class Uuid:
    def get_most_significant_bits(self) -> int: ...
    def get_least_significant_bits(self) -> int: ...
