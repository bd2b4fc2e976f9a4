// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ronde/grid.h"
#include "ronde/runtime.h"

namespace ronde::test {

/// A rank's part of a perceptron in training, divided over the axes of a grid as `ronde grid` says
/// (tools/grid/volume.h), with parts that are even. Written without the prediction: what it sends
/// is what a program has to send. Layers are linear, with a bias, and ReLU between them; the loss
/// is half the squared distance from the targets.
class GridMlp {
 public:
  /// As ronde::Grid({stages, data, rows, columns}) numbers its axes.
  enum Axis { kStages, kData, kRows, kColumns };

  /// The bytes that this rank sends, as `sent` counts them.
  struct Sent {
    std::uint64_t data = 0, tensor = 0, pipeline = 0;
    friend bool operator==(const Sent&, const Sent&) = default;
  };

  struct Layer {
    int in = 0, out = 0;  ///< axes over which inputs and outputs are divided
    std::size_t inputs = 0, outputs = 0, first_input = 0, first_output = 0;  ///< of this rank
    std::vector<float> weights;                                              ///< [inputs, outputs]
  };

  /// `computes`: false for the communication alone. `sent`: counts what this rank has sent so far.
  GridMlp(
      Runtime& runtime, const std::vector<int>& sizes, std::vector<std::size_t> widths,
      std::size_t batch, std::size_t micro_batches, bool computes,
      std::function<std::uint64_t()> sent = [] { return std::uint64_t{0}; })
      : runtime_(runtime),
        grid_(runtime, sizes,
              "mlp " + std::to_string(sizes[0] * 1000 + sizes[1] * 100 + sizes[2] * 10 + sizes[3])),
        widths_(std::move(widths)),
        micro_batches_(sizes[kStages] > 1 ? micro_batches : 1),
        samples_(batch / at(kData) / micro_batches_),
        computes_(computes),
        sent_(std::move(sent)) {
    const std::size_t all = widths_.size() - 1;
    // The first stages have a layer more where they do not divide evenly.
    for (std::size_t layer = 0, stage = 0; stage < at(kStages); ++stage) {
      const std::size_t count = all / at(kStages) + (stage < all % at(kStages) ? 1 : 0);
      for (std::size_t i = 0; i < count; ++i, ++layer) {
        if (stage == place(kStages)) add_layer(layer);
      }
    }
  }

  /// One step: all micro-batches forward, all backward, and the gradients summed over the replicas.
  void step() {
    std::vector<std::vector<std::vector<float>>> activations(micro_batches_);
    for (std::size_t k = 0; k < micro_batches_; ++k) activations[k] = forward(k);
    gradients_.assign(parameters(), 0);
    for (std::size_t k = micro_batches_; k-- > 0;) backward(k, std::move(activations[k]));
    allreduce("gradients", kData, gradients_, sent_bytes.data);
  }

  /// Removes the process sets; collective.
  void remove() { grid_.remove(); }

  const std::vector<Layer>& layers() const { return layers_; }
  /// The number of the first of layers() in the model.
  std::size_t first_layer() const { return first_layer_; }
  /// The weights' gradients and the bias' of each of layers().
  const std::vector<float>& gradients() const { return gradients_; }
  Sent sent_bytes;

 private:
  std::size_t at(int axis) const { return static_cast<std::size_t>(grid_.size(axis)); }
  std::size_t place(int axis) const { return static_cast<std::size_t>(grid_.coordinate(axis)); }

  /// A number from -0.5 to 0.5 that depends on its place alone.
  static float value_at(std::size_t kind, std::size_t row, std::size_t column) {
    const std::size_t mixed = (row * 7919 + column * 104729 + kind * 1299709) * 2654435761U;
    return static_cast<float>(mixed >> 7 & 255U) / 256.0F - 0.5F;
  }

  void add_layer(std::size_t number) {
    if (layers_.empty()) first_layer_ = number;
    Layer layer;
    layer.in = number % 2 == 0 ? kRows : kColumns;
    layer.out = number % 2 == 0 ? kColumns : kRows;
    layer.inputs = widths_[number] / at(layer.in);
    layer.outputs = widths_[number + 1] / at(layer.out);
    layer.first_input = layer.inputs * place(layer.in);
    layer.first_output = layer.outputs * place(layer.out);
    for (std::size_t i = 0; i < layer.inputs * layer.outputs; ++i) {
      layer.weights.push_back(value_at(number, layer.first_input + i / layer.outputs,
                                       layer.first_output + i % layer.outputs));
    }
    layers_.push_back(std::move(layer));
  }

  std::size_t parameters() const {
    std::size_t count = 0;
    for (const Layer& layer : layers_) count += (layer.inputs + 1) * layer.outputs;
    return count;
  }

  /// This rank's columns of the samples or targets of a micro-batch.
  std::vector<float> data(std::size_t kind, std::size_t k, std::size_t first, std::size_t columns) {
    std::vector<float> values;
    const std::size_t first_sample = (place(kData) * micro_batches_ + k) * samples_;
    for (std::size_t i = 0; i < samples_ * columns; ++i) {
      values.push_back(value_at(kind, first_sample + i / columns, first + i % columns));
    }
    return values;
  }

  /// Returns what each layer reads, and at last what the stage writes.
  std::vector<std::vector<float>> forward(std::size_t k) {
    constexpr std::size_t kSamples = 1000;
    std::vector<std::vector<float>> read;
    const Layer& first = layers_.front();
    if (place(kStages) == 0) {
      read.push_back(data(kSamples, k, first.first_input, first.inputs));
    } else {
      read.emplace_back(samples_ * first.inputs);
      message(Collective::Recv, place(kStages) - 1, read.back());
    }
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      std::vector<float> written(samples_ * layer.outputs);
      for_all(layer, [&](std::size_t sample, std::size_t in, std::size_t out) {
        written[sample * layer.outputs + out] +=
            read.back()[sample * layer.inputs + in] * layer.weights[in * layer.outputs + out];
      });
      allreduce("outputs " + std::to_string(i), layer.in, written, sent_bytes.tensor);
      const bool is_last = first_layer_ + i + 2 == widths_.size();
      for (float& value : written) value = is_last ? value : std::max(value, 0.0F);
      read.push_back(std::move(written));
    }
    if (place(kStages) + 1 < at(kStages))
      message(Collective::Send, place(kStages) + 1, read.back());
    return read;
  }

  void backward(std::size_t k, std::vector<std::vector<float>> read) {
    constexpr std::size_t kTargets = 1001;
    std::vector<float> error = std::move(read.back());
    const Layer& last = layers_.back();
    const bool ends_model = place(kStages) + 1 == at(kStages);
    if (ends_model) {
      const std::vector<float> targets = data(kTargets, k, last.first_output, last.outputs);
      for (std::size_t i = 0; i < error.size(); ++i) error[i] -= targets[i];
    } else {
      // Of what this stage has written, which says where ReLU passes it on.
      std::vector<float> got(error.size());
      message(Collective::Recv, place(kStages) + 1, got);
      for (std::size_t i = 0; i < error.size(); ++i) error[i] = error[i] > 0 ? got[i] : 0;
    }
    std::size_t end = gradients_.size();
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const Layer& layer = layers_[i];
      end -= (layer.inputs + 1) * layer.outputs;
      error = backward(layer, read[i], error, std::span(gradients_).subspan(end), first_layer_ + i);
    }
    if (place(kStages) > 0) message(Collective::Send, place(kStages) - 1, error);
  }

  /// Returns the gradient of what the layer has read; in a stage, of that before ReLU.
  std::vector<float> backward(const Layer& layer, const std::vector<float>& read,
                              const std::vector<float>& error, std::span<float> gradient,
                              std::size_t number) {
    std::vector<float> of_read(read.size());
    for_all(layer, [&](std::size_t sample, std::size_t in, std::size_t out) {
      const float from = error[sample * layer.outputs + out];
      gradient[in * layer.outputs + out] += read[sample * layer.inputs + in] * from;
      of_read[sample * layer.inputs + in] += layer.weights[in * layer.outputs + out] * from;
      if (in == 0) gradient[layer.inputs * layer.outputs + out] += from;
    });
    if (number == 0) return of_read;  // nobody asks for that of the samples
    allreduce("inputs " + std::to_string(number), layer.out, of_read, sent_bytes.tensor);
    if (number == first_layer_) return of_read;  // the stage before knows where ReLU passes it on
    for (std::size_t i = 0; i < read.size(); ++i) of_read[i] = read[i] > 0 ? of_read[i] : 0;
    return of_read;
  }

  void for_all(const Layer& layer, const auto& each) const {
    for (std::size_t sample = 0; computes_ && sample < samples_; ++sample) {
      for (std::size_t in = 0; in < layer.inputs; ++in) {
        for (std::size_t out = 0; out < layer.outputs; ++out) each(sample, in, out);
      }
    }
  }

  void allreduce(const std::string& name, int axis, std::vector<float>& values,
                 std::uint64_t& counter) {
    if (grid_.size(axis) == 1) return;
    Request request;
    request.name = name;
    request.input = request.output = values.data();
    run(std::move(request), axis, values, counter);
  }

  void message(Collective kind, std::size_t stage, std::vector<float>& values) {
    Request request;
    request.kind = kind;
    request.peer = static_cast<int>(stage);
    if (kind == Collective::Send) request.input = values.data();
    if (kind == Collective::Recv) request.output = values.data();
    run(std::move(request), kStages, values, sent_bytes.pipeline);
  }

  void run(Request request, int axis, const std::vector<float>& values, std::uint64_t& counter) {
    request.set = grid_.set(axis);
    request.shape = {static_cast<std::int64_t>(values.size())};
    const std::uint64_t before = sent_();
    runtime_.run(std::move(request));
    counter += sent_() - before;
  }

  Runtime& runtime_;
  Grid grid_;
  const std::vector<std::size_t> widths_;
  const std::size_t micro_batches_, samples_;
  const bool computes_;
  const std::function<std::uint64_t()> sent_;
  std::vector<Layer> layers_;
  std::size_t first_layer_ = 0;
  std::vector<float> gradients_;
};

}  // namespace ronde::test
