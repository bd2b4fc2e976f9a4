// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ronde/completion_queue.h>
#include <ronde/process_set.h>
#include <ronde/torch/work.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "schedule.h"

namespace pipeline {

/// A stage of a network of `layers` residual layers, x + relu(linear(x)) / layers, which maps
/// [n, width] to [n, width] in 64-bit floats.
///
/// The weights are those that one process would draw for the whole network from the generator's
/// state: every rank draws all layers one after the other, and keeps its own.
class StageImpl : public torch::nn::Module {
 public:
  StageImpl(std::int64_t layers, std::int64_t width, int stage, int stages);

  torch::Tensor forward(const torch::Tensor& input);

 private:
  double scale_;
  std::vector<torch::nn::Linear> layers_;
};
TORCH_MODULE(Stage);

/// What a copy of the model trains on in a step. Only the first stage reads the inputs, only the
/// last one the targets.
struct Data {
  std::vector<torch::Tensor> inputs;   ///< by micro-batch, [n, width]
  std::vector<torch::Tensor> targets;  ///< by micro-batch, [n, width]
  double elements = 1;                 ///< of the targets of all copies and replicas
};

/// The stage of one copy of the model that a rank holds, with its messages. Outputs travel to the
/// rank of the next stage, their gradients back. Use it on one thread.
class Part {
 public:
  /// The ranks of `pipeline` hold the stages. `arrivals` has a token whenever a message has come;
  /// both outlive the part. Each fourth forward pass of the first stage takes `slow` times as long.
  Part(Stage module, const Shape& shape, int copy, ronde::ProcessSet pipeline,
       ronde::CompletionQueue& arrivals, int slow);

  /// Begins a step: the first messages may come.
  void begin(Data data);
  /// Returns whether all that a pass needs is here.
  bool ready(const Pass& pass) const;
  /// Runs a pass that is ready, and sends its result on.
  void run(const Pass& pass);
  /// Waits until all that was sent has been received. Returns this copy's share of the loss, in
  /// which those of the micro-batches are added in their order; 0 unless this is the last stage.
  double finish();

 private:
  struct MicroBatch {
    torch::Tensor input;
    torch::Tensor output;  ///< on the last stage the loss
    torch::Tensor error;   ///< gradient of the output
    ronde::TensorWork input_work;
    ronde::TensorWork error_work;
  };

  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == shape_.stages - 1; }
  void forward(MicroBatch& batch, int index, int slowdown);
  void backward(MicroBatch& batch, int index);
  void expect_input();
  ronde::TensorWork receive(const torch::Tensor& tensor, int stage, bool backward, int index);
  void send(const torch::Tensor& tensor, int stage, bool backward, int index);
  std::int64_t tag(bool backward, int index) const;

  Stage module_;
  Shape shape_;
  int copy_;
  ronde::ProcessSet pipeline_;
  int stage_;
  ronde::CompletionQueue& arrivals_;
  int slow_;
  Data data_;
  std::vector<MicroBatch> batches_;
  std::size_t expected_ = 0;  ///< inputs whose receive has begun
  std::vector<double> losses_;
  std::vector<ronde::TensorWork> sends_;
};

}  // namespace pipeline
