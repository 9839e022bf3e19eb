"""Trains Keras models with TensorFlow, runs out of memory, and trains on.

Arguments: the number of steps before and after, and the bytes that TensorFlow may take. Prints what a user can see of the device, the
tensors and the errors as one JSON object. Waits for the end of its input before it ends.

Kernels of the simulated GPU compute nothing. So the script uses no value that it reads back.
"""

import json
import os
import sys

import numpy
import tensorflow
from tensorflow.keras import layers

MIB = 1 << 20
# The script fills the memory in pieces of this size.
PIECE_BYTES = 64 * MIB
BATCH, SIDE, CLASSES = 8, 32, 10


def convolutions(policy):
    return tensorflow.keras.Sequential(
        [
            layers.Input((SIDE, SIDE, 3)),
            layers.Conv2D(16, 3, dtype=policy),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(CLASSES, dtype=policy),
        ]
    )


def attention(policy):
    image = layers.Input((SIDE, SIDE, 3))
    words = layers.Reshape((SIDE, 3 * SIDE))(image)
    words = layers.MultiHeadAttention(4, 8, dtype=policy)(words, words)
    words = layers.LayerNormalization()(layers.Dropout(0.1)(words))
    return tensorflow.keras.Model(image, layers.Dense(CLASSES)(layers.Flatten()(words)))


class Training:
    """A model, and how Keras trains it. By default, Keras compiles a model with XLA."""

    def __init__(self, model, **options):
        self.model = model
        self.done = 0
        self.counter = tensorflow.keras.callbacks.LambdaCallback(on_train_batch_end=self.count)
        loss = tensorflow.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(optimizer="adam", loss=loss, **options)

    def count(self, batch, logs):
        self.done += 1

    def steps(self, count):
        images = numpy.zeros((count * BATCH, SIDE, SIDE, 3), numpy.float32)
        data = tensorflow.data.Dataset.from_tensor_slices((images, numpy.arange(len(images)) % CLASSES))
        history = self.model.fit(data.batch(BATCH).prefetch(2), callbacks=[self.counter], verbose=0)
        outputs = self.model.predict(images[:BATCH], verbose=0)
        return {
            "epochs": len(history.history["loss"]),
            "steps": self.done,
            "shape": list(outputs.shape),
            "dtype": str(outputs.dtype),
        }


def fill():
    """Takes memory until the allocator refuses. Returns the number of pieces, and the error."""
    pieces = []
    try:
        while True:
            pieces.append(tensorflow.zeros(PIECE_BYTES, tensorflow.uint8))
    except tensorflow.errors.ResourceExhaustedError as error:
        return len(pieces), type(error).__name__


def main():
    steps, most_bytes = int(sys.argv[1]), int(sys.argv[2])
    (gpu,) = tensorflow.config.list_physical_devices("GPU")
    # TensorFlow takes memory when it needs memory. By default, it takes almost all at its start.
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    most = tensorflow.config.LogicalDeviceConfiguration(memory_limit=most_bytes // MIB)
    tensorflow.config.set_logical_device_configuration(gpu, [most])
    said = {
        "tensorflow": tensorflow.__version__,
        "device": tensorflow.config.experimental.get_device_details(gpu),
    }
    trainings = {
        "xla": Training(convolutions("float32")),
        "mixed": Training(attention("mixed_bfloat16"), jit_compile=False),
    }
    train = lambda: {name: training.steps(steps) for name, training in trainings.items()}
    said["before"] = train()
    said["pieces"], said["error"] = fill()
    said["after"] = train()
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
