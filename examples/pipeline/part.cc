// SPDX-License-Identifier: Apache-2.0
#include "part.h"

#include <ronde/ronde.h>
#include <ronde/torch/collectives.h>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

namespace pipeline {

StageImpl::StageImpl(std::int64_t layers, std::int64_t width, int stage, int stages)
    : scale_(1 / double(layers)) {
  for (std::int64_t i = 0; i < layers; ++i) {
    torch::nn::Linear layer(width, width);
    if (i * stages / layers != stage) continue;
    layer->to(torch::kFloat64);
    layers_.push_back(register_module("layer" + std::to_string(i), layer));
  }
}

torch::Tensor StageImpl::forward(const torch::Tensor& input) {
  torch::Tensor x = input;
  for (torch::nn::Linear& layer : layers_) x = x + scale_ * torch::relu(layer->forward(x));
  return x;
}

Part::Part(Stage module, const Shape& shape, int copy, ronde::ProcessSet pipeline,
           ronde::CompletionQueue& arrivals, int slow)
    : module_(std::move(module)),
      shape_(shape),
      copy_(copy),
      pipeline_(pipeline),
      stage_(shape.stage_of(ronde::rank_in(pipeline).value(), copy)),
      arrivals_(arrivals),
      slow_(slow) {}

void Part::begin(Data data) {
  data_ = std::move(data);
  batches_.assign(data_.inputs.size(), {});
  losses_.assign(data_.inputs.size(), 0);
  expected_ = 0;
  // Inputs that may wait for their forward pass: the next one is then here when it is needed.
  constexpr int kInputsAhead = 2;
  for (int i = 0; i < kInputsAhead; ++i) expect_input();
}

bool Part::ready(const Pass& pass) const {
  const MicroBatch& batch = batches_[static_cast<std::size_t>(pass.micro_batch)];
  if (pass.backward) return batch.output.defined() && batch.error_work.done();
  return batch.input.defined() && batch.input_work.done();
}

void Part::run(const Pass& pass) {
  const ronde::Span span((pass.backward ? "backward " : "forward ") + std::string(1, "AB"[copy_]) +
                         std::to_string(pass.micro_batch));
  MicroBatch& batch = batches_[static_cast<std::size_t>(pass.micro_batch)];
  if (pass.backward) {
    backward(batch, pass.micro_batch);
  } else {
    forward(batch, pass.micro_batch, slowdown(stage_, pass, slow_));
  }
}

void Part::forward(MicroBatch& batch, int index, int slowdown) {
  batch.input_work.wait();  // throws if the message failed
  expect_input();
  batch.input.requires_grad_(!is_first());
  const auto begin = std::chrono::steady_clock::now();
  batch.output = module_->forward(batch.input);
  std::this_thread::sleep_for((std::chrono::steady_clock::now() - begin) * (slowdown - 1));
  const auto place = static_cast<std::size_t>(index);
  if (is_last()) {
    batch.output = (batch.output - data_.targets[place]).square().sum() / data_.elements;
    losses_[place] = batch.output.item<double>();
  } else {
    send(batch.output.detach(), stage_ + 1, false, index);
    batch.error = torch::empty_like(batch.output);
    batch.error_work = receive(batch.error, stage_ + 1, true, index);
  }
}

void Part::backward(MicroBatch& batch, int index) {
  batch.error_work.wait();
  batch.output.backward(batch.error);
  if (!is_first()) send(batch.input.grad(), stage_ - 1, true, index);
  batch = {};  // frees the activations
}

void Part::expect_input() {
  if (expected_ == batches_.size()) return;
  const std::size_t index = expected_++;
  MicroBatch& batch = batches_[index];
  batch.input = data_.inputs[index];
  if (is_first()) return;
  batch.input = torch::empty_like(batch.input);
  batch.input_work = receive(batch.input, stage_ - 1, false, static_cast<int>(index));
}

ronde::TensorWork Part::receive(const torch::Tensor& tensor, int stage, bool backward, int index) {
  ronde::TensorWork work = ronde::recv_async_(tensor, {.peer = shape_.stage_of(stage, copy_),
                                                       .tag = tag(backward, index),
                                                       .process_set = pipeline_});
  arrivals_.add(work, 0);
  work.wait_for({});  // begins it now
  return work;
}

void Part::send(const torch::Tensor& tensor, int stage, bool backward, int index) {
  sends_.push_back(ronde::send_async(tensor, {.peer = shape_.stage_of(stage, copy_),
                                              .tag = tag(backward, index),
                                              .process_set = pipeline_}));
  sends_.back().wait_for({});
}

std::int64_t Part::tag(bool backward, int index) const {
  return (index * 2 + (backward ? 1 : 0)) * 2 + copy_;
}

double Part::finish() {
  for (const ronde::TensorWork& work : sends_) work.wait();
  sends_.clear();
  return std::accumulate(losses_.begin(), losses_.end(), 0.0);
}

}  // namespace pipeline
