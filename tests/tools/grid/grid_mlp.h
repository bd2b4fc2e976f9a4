// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ronde/grid.h"
#include "ronde/runtime.h"
#include "tools/grid/volume.h"

namespace ronde::test {

/// A rank's part of linear layers with biases in training, divided as tool::Division says, in parts
/// that are even. Written without the prediction: what it sends is what a program has to send. The
/// loss is the sum of the products of outputs and targets.
class GridMlp {
 public:
  using Values = std::vector<float>;

  struct Layer {
    int in = 0, out = 0;  ///< axes over which inputs and outputs are divided
    std::size_t inputs = 0, outputs = 0, first_input = 0, first_output = 0;  ///< of this rank
    std::size_t first_gradient = 0;
    Values weights;  ///< [inputs, outputs]
  };

  /// `computes`: false for the communication alone. `sent`: counts what this rank has sent so far.
  GridMlp(
      Runtime& runtime, const tool::TrainingStep& step, const tool::Division& division,
      bool computes, std::function<std::uint64_t()> sent = [] { return std::uint64_t{0}; })
      : runtime_(runtime),
        grid_(runtime, std::vector<int>(division.begin(), division.end()), name_of(division)),
        micro_batches_(division[tool::kStages] > 1 ? step.micro_batches : 1),
        samples_(step.batch / division[tool::kData] / micro_batches_),
        is_last_stage_(place(tool::kStages) + 1 == division[tool::kStages]),
        computes_(computes),
        sent_(std::move(sent)) {
    const std::size_t all = step.layers.size(), stages = division[tool::kStages];
    // The first stages have a layer more where they do not divide evenly.
    for (std::size_t layer = 0, stage = 0; stage < stages; ++stage) {
      const std::size_t count = all / stages + (stage < all % stages ? 1 : 0);
      if (stage == place(tool::kStages)) first_layer_ = layer;
      for (std::size_t i = 0; i < count; ++i, ++layer) {
        if (stage == place(tool::kStages)) add_layer(layer, step.layers[layer]);
      }
    }
  }

  static std::string name_of(const tool::Division& division) {
    std::string name = "mlp";
    for (const std::size_t size : division) name += ' ' + std::to_string(size);
    return name;
  }

  /// One step: all micro-batches forward, all backward, and the gradients summed over the replicas.
  void step() {
    std::vector<std::vector<Values>> read;
    for (std::size_t k = 0; k < micro_batches_; ++k) read.push_back(forward(k));
    std::fill(gradients_.begin(), gradients_.end(), 0.0F);
    for (std::size_t k = micro_batches_; k-- > 0;) backward(k, read[k]);
    allreduce("gradients", tool::kData, gradients_, sent_bytes.data);
  }

  /// Removes the process sets; collective.
  void remove() { grid_.remove(); }

  const std::vector<Layer>& layers() const { return layers_; }
  /// The number of the first of layers() in the model.
  std::size_t first_layer() const { return first_layer_; }
  /// The gradients of the weights and of the bias of each of layers().
  const Values& gradients() const { return gradients_; }
  /// The bytes that this rank has sent, as `sent` counts them.
  tool::Traffic sent_bytes;

 private:
  std::size_t place(int axis) const { return static_cast<std::size_t>(grid_.coordinate(axis)); }

  /// A number from -0.5 to 0.5 that depends on its place alone.
  static float value_at(std::size_t kind, std::size_t row, std::size_t column) {
    const std::size_t mixed = (row * 7919 + column * 104729 + kind * 1299709) * 2654435761U;
    return static_cast<float>(mixed >> 7 & 255U) / 256.0F - 0.5F;
  }

  void add_layer(std::size_t number, const tool::Layer& whole) {
    Layer layer;
    layer.in = number % 2 == 0 ? tool::kRows : tool::kColumns;
    layer.out = number % 2 == 0 ? tool::kColumns : tool::kRows;
    layer.inputs = whole.inputs / static_cast<std::size_t>(grid_.size(layer.in));
    layer.outputs = whole.outputs / static_cast<std::size_t>(grid_.size(layer.out));
    layer.first_input = layer.inputs * place(layer.in);
    layer.first_output = layer.outputs * place(layer.out);
    for (std::size_t i = 0; i < layer.inputs * layer.outputs; ++i) {
      layer.weights.push_back(value_at(number, layer.first_input + i / layer.outputs,
                                       layer.first_output + i % layer.outputs));
    }
    layer.first_gradient = gradients_.size();
    gradients_.resize(gradients_.size() + (layer.inputs + 1) * layer.outputs);
    layers_.push_back(std::move(layer));
  }

  /// This rank's columns of the samples or targets of a micro-batch.
  Values data(std::size_t kind, std::size_t k, std::size_t first, std::size_t columns) const {
    Values values;
    const std::size_t first_sample = (place(tool::kData) * micro_batches_ + k) * samples_;
    for (std::size_t i = 0; i < samples_ * columns; ++i) {
      values.push_back(value_at(kind, first_sample + i / columns, first + i % columns));
    }
    return values;
  }

  /// Returns what each layer reads.
  std::vector<Values> forward(std::size_t k) {
    constexpr std::size_t kSamples = 1000;
    const Layer& first = layers_.front();
    Values values = data(kSamples, k, first.first_input, first.inputs);
    if (first_layer_ > 0) message(Collective::Recv, place(tool::kStages) - 1, values);
    std::vector<Values> read;
    for (const Layer& layer : layers_) {
      Values written(samples_ * layer.outputs);
      for_all(layer, [&](std::size_t sample, std::size_t in, std::size_t out) {
        written[sample * layer.outputs + out] +=
            values[sample * layer.inputs + in] * layer.weights[in * layer.outputs + out];
      });
      allreduce("outputs " + std::to_string(read.size()), layer.in, written, sent_bytes.tensor);
      read.push_back(std::exchange(values, std::move(written)));
    }
    if (!is_last_stage_) message(Collective::Send, place(tool::kStages) + 1, values);
    return read;
  }

  void backward(std::size_t k, const std::vector<Values>& read) {
    constexpr std::size_t kTargets = 1001;
    Values error = data(kTargets, k, layers_.back().first_output, layers_.back().outputs);
    if (!is_last_stage_) message(Collective::Recv, place(tool::kStages) + 1, error);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const Layer& layer = layers_[i];
      float* const gradient = &gradients_[layer.first_gradient];
      Values before(read[i].size());
      for_all(layer, [&](std::size_t sample, std::size_t in, std::size_t out) {
        const float from = error[sample * layer.outputs + out];
        gradient[in * layer.outputs + out] += read[i][sample * layer.inputs + in] * from;
        before[sample * layer.inputs + in] += layer.weights[in * layer.outputs + out] * from;
        if (in == 0) gradient[layer.inputs * layer.outputs + out] += from;
      });
      error = std::move(before);
      if (first_layer_ + i == 0) return;  // nobody asks for the gradient of the samples
      allreduce("inputs " + std::to_string(i), layer.out, error, sent_bytes.tensor);
    }
    message(Collective::Send, place(tool::kStages) - 1, error);
  }

  void for_all(const Layer& layer, const auto& each) const {
    for (std::size_t sample = 0; computes_ && sample < samples_; ++sample) {
      for (std::size_t in = 0; in < layer.inputs; ++in) {
        for (std::size_t out = 0; out < layer.outputs; ++out) each(sample, in, out);
      }
    }
  }

  void allreduce(const std::string& name, int axis, Values& values, std::uint64_t& counter) {
    if (grid_.size(axis) == 1) return;
    Request request;
    request.name = name;
    request.input = request.output = values.data();
    run(std::move(request), axis, values, counter);
  }

  void message(Collective kind, std::size_t stage, Values& values) {
    Request request;
    request.kind = kind;
    request.peer = static_cast<int>(stage);
    if (kind == Collective::Send) request.input = values.data();
    if (kind == Collective::Recv) request.output = values.data();
    run(std::move(request), tool::kStages, values, sent_bytes.pipeline);
  }

  void run(Request request, int axis, const Values& values, std::uint64_t& counter) {
    request.set = grid_.set(axis);
    request.shape = {static_cast<std::int64_t>(values.size())};
    const std::uint64_t before = sent_();
    runtime_.run(std::move(request));
    counter += sent_() - before;
  }

  Runtime& runtime_;
  Grid grid_;
  const std::size_t micro_batches_, samples_;
  const bool is_last_stage_, computes_;
  const std::function<std::uint64_t()> sent_;
  std::vector<Layer> layers_;
  std::size_t first_layer_ = 0;
  Values gradients_;
};

}  // namespace ronde::test
