"""Trains a perceptron with TensorFlow's Keras, without XLA, until it is killed.

Kernels of the simulated GPU compute nothing, so the loss has no meaning there.
"""

import sys

import tensorflow
from tensorflow.keras import layers

WIDTH, LAYERS = 256, 8
# Keras looks at the loss after so many steps.
STEPS_PER_LOOK = 10
STEPS_PER_EPOCH = 5 * STEPS_PER_LOOK


class Progress(tensorflow.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        if epoch == 0:
            print(f"warmed up; training with batches of {WIDTH}", flush=True)


def main():
    (gpu,) = tensorflow.config.list_physical_devices("GPU")
    tensorflow.config.experimental.set_memory_growth(gpu, True)
    perceptron = [layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)]
    model = tensorflow.keras.Sequential([layers.Input((WIDTH,)), *perceptron])
    model.compile(optimizer="adam", loss="mse", jit_compile=False, steps_per_execution=STEPS_PER_LOOK)
    with tensorflow.device("/GPU:0"):
        batch = tensorflow.zeros((WIDTH, WIDTH))
    data = tensorflow.data.Dataset.from_tensors((batch, batch)).repeat()
    model.fit(data, steps_per_epoch=STEPS_PER_EPOCH, epochs=sys.maxsize, callbacks=[Progress()], verbose=0)


if __name__ == "__main__":
    main()
