// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How ronde/torch/checkpoint.h takes objects apart into tensors and bytes.

#include <torch/csrc/jit/api/module.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ronde/torch/distributed_optimizer.h"
#include "ronde/torch/object_codec.h"

namespace ronde::detail {

/// An object that a checkpoint keeps: tensors, the rest as bytes, or both.
struct CheckpointObject {
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// The type of the object, if it has bytes; else empty.
  std::string type = {};
  /// Returns the tensors to save, by name, equal on all ranks. Null: none.
  std::function<Tensors()> tensors = {};
  /// Returns tensors that may differ between ranks, of which rank 0's are saved. Null: none.
  std::function<Tensors()> buffers = {};
  /// Returns the rest as bytes, of which rank 0's are saved. Null: none.
  std::function<std::string()> encode = {};
  /// Whether loaded tensors must match the present ones in names, shapes and dtypes.
  bool fixed = true;
  /// Loads, or throws and leaves the object as it was. The function it returns keeps the new state
  /// or restores the former. The tensors are on the CPU.
  std::function<std::function<void(bool keep)>(const std::map<std::string, at::Tensor>& tensors,
                                               const std::string& bytes)>
      load = {};
};

/// A type with members save() and load() but no operators, such as GradScaler.
template <typename T>
concept SavesItself = requires(const T& saved, T& loaded, torch::serialize::OutputArchive& out,
                               torch::serialize::InputArchive& in) {
  saved.save(out);
  loaded.load(in);
};

template <typename T>
concept CheckpointedObject =
    Object<T> || SavesItself<T> || std::same_as<T, torch::jit::Module> || std::is_arithmetic_v<T> ||
    std::same_as<T, DistributedOptimizer> || std::derived_from<T, torch::optim::LRScheduler>;

CheckpointObject checkpoint_object_of(torch::nn::Module* module);
CheckpointObject checkpoint_object_of(const torch::jit::Module& module);
CheckpointObject checkpoint_object_of(torch::optim::Optimizer& optimizer);
CheckpointObject checkpoint_object_of(at::Tensor& tensor);
CheckpointObject checkpoint_object_of(ObjectCodec codec);
/// Saves the number of steps of LibTorch's schedulers, which save nothing themselves; their other
/// state is the optimizer's. ReduceLROnPlateauScheduler is not derived from LRScheduler.
CheckpointObject checkpoint_object_of(torch::optim::LRScheduler& scheduler);
/// Saves the random generators of this rank.
CheckpointObject checkpoint_object_of_generators(ProcessSet set);

template <typename T>
ObjectCodec codec_of_number(T& number) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  ObjectCodec codec{.lines = {std::is_floating_point_v<T> ? "real number" : "whole number"}};
  codec.encode = [&number] { return bytes_of_ivalue(c10::IValue(static_cast<Wide>(number))); };
  codec.decode = [&number](const std::string& bytes) -> std::function<void(bool)> {
    const auto value = static_cast<T>(ivalue_from(bytes).to<Wide>());
    return [&number, value](bool keep) {
      if (keep) number = value;
    };
  };
  return codec;
}

template <SavesItself T>
ObjectCodec codec_of_members(T& object) {
  ObjectCodec codec{.lines = {type_text<T>()}};
  const auto saved = [&object] {
    return bytes_of_archive(
        [&](torch::serialize::OutputArchive& archive) { object.save(archive); });
  };
  const auto load = [&object](const std::string& bytes) {
    read_archive(bytes, [&](torch::serialize::InputArchive& archive) { object.load(archive); });
  };
  codec.encode = saved;
  codec.decode = [saved, load](const std::string& bytes) -> std::function<void(bool)> {
    return load_or_undo(saved, load, bytes);
  };
  return codec;
}

template <CheckpointedObject T>
CheckpointObject checkpoint_object(T& object) {
  if constexpr (std::same_as<T, DistributedOptimizer>) {
    return checkpoint_object_of(object.inner());
  } else if constexpr (std::same_as<T, torch::jit::Module>) {
    return checkpoint_object_of(std::as_const(object));
  } else if constexpr (ModuleObject<T>) {
    return checkpoint_object_of(module_in(object));
  } else if constexpr (OptimizerObject<T>) {
    return checkpoint_object_of(static_cast<torch::optim::Optimizer&>(object));
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return checkpoint_object_of(object);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return checkpoint_object_of(codec_of_number(object));
  } else if constexpr (SavesItself<T>) {
    return checkpoint_object_of(codec_of_members(object));
  } else if constexpr (std::derived_from<T, torch::optim::LRScheduler>) {
    return checkpoint_object_of(static_cast<torch::optim::LRScheduler&>(object));
  } else {
    return checkpoint_object_of(codec_of_object(object));
  }
}

}  // namespace ronde::detail
