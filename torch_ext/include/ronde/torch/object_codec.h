// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Encodes objects as bytes, and decodes them, for ronde/torch/objects.h.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "ronde/options.h"

namespace ronde {

namespace detail {

template <typename T, typename... Types>
concept OneOf = (std::same_as<T, Types> || ...);

template <typename T>
concept Bytes = OneOf<T, std::string, std::vector<char>, std::vector<signed char>,
                      std::vector<unsigned char>, std::vector<std::byte>>;

inline torch::nn::Module* module_in(torch::nn::Module& module) {
  return &module;
}
/// Returns null if the holder is empty.
template <typename M>
torch::nn::Module* module_in(const torch::nn::ModuleHolder<M>& holder) {
  return holder.is_empty() ? nullptr : holder.ptr().get();
}
template <std::derived_from<torch::nn::Module> M>
torch::nn::Module* module_in(const std::shared_ptr<M>& module) {
  return module.get();
}

template <typename T>
concept ModuleObject = requires(T& object) {
  module_in(object);
};

template <typename T>
concept OptimizerObject = std::derived_from<T, torch::optim::Optimizer>;

/// A type for which LibTorch, or the program, has archive operators.
template <typename T>
concept ArchivedObject = requires(torch::serialize::OutputArchive& out,
                                  torch::serialize::InputArchive& in, T& object) {
  out << std::as_const(object);
  in >> object;
};

/// A type that can be made from bytes alone.
template <typename T>
concept ValueObject = Bytes<T> || OneOf<T, at::Tensor, std::vector<at::Tensor>, c10::IValue> ||
    (!ModuleObject<T> && !OptimizerObject<T> && ArchivedObject<T> && std::movable<T> &&
     std::default_initializable<T>);

template <typename T>
concept Object = ModuleObject<T> || OptimizerObject<T> || ValueObject<T> || ArchivedObject<T>;

/// Encodes an object on one rank, and decodes it on others.
struct ObjectCodec {
  /// Must be equal on all ranks: the object's type, and its parts.
  std::vector<std::string> lines = {};
  /// Why this rank's object can neither be sent nor replaced; empty if it can.
  std::string problem = {};
  std::function<std::string()> encode = {};
  /// Loads, or throws and leaves the object as it was. The function it returns is called with
  /// whether all ranks could load, and keeps the new object or restores the former.
  std::function<std::function<void(bool keep)>(std::string bytes)> decode = {};
};

/// Encodes an object, and appends all ranks' objects to a list.
struct ListCodec {
  std::string type = {};
  std::function<std::string()> encode = {};
  /// Called for each rank's bytes, in rank order.
  std::function<void(std::string bytes)> append = {};
};

std::string type_text(const std::type_info& type);
std::string bytes_of(const at::Tensor& tensor);
std::string bytes_of(const std::vector<at::Tensor>& tensors);
std::string bytes_of_ivalue(const c10::IValue& value);
std::string bytes_of_archive(const std::function<void(torch::serialize::OutputArchive&)>& write);
/// Returns new tensors on the device of `former` if that is defined, else on the CPU.
at::Tensor tensor_from(const std::string& bytes, const at::Tensor& former);
std::vector<at::Tensor> tensors_from(const std::string& bytes,
                                     const std::vector<at::Tensor>& former);
c10::IValue ivalue_from(const std::string& bytes);
void read_archive(const std::string& bytes,
                  const std::function<void(torch::serialize::InputArchive&)>& read);

/// Implements decode() for an object that `load` changes. Restores it by loading what `save`
/// returned before, unless the object could not be saved.
std::function<void(bool keep)> load_or_undo(const std::function<std::string()>& save,
                                            const std::function<void(const std::string&)>& load,
                                            const std::string& bytes);

ObjectCodec codec_of(torch::nn::Module* module);
ObjectCodec codec_of(torch::optim::Optimizer& optimizer);

void broadcast_object(const ObjectCodec& codec, const BroadcastOptions& options);
void allgather_object(const ListCodec& codec, const AllgatherOptions& options);
void gather_object(const ListCodec& codec, const BroadcastOptions& options);
std::string save_object(const ObjectCodec& codec);
void load_object(const ObjectCodec& codec, std::string bytes);

template <typename T>
std::string bytes_of_object(const T& object) {
  if constexpr (Bytes<T>) {
    return {reinterpret_cast<const char*>(object.data()), object.size()};
  } else if constexpr (std::same_as<T, c10::IValue>) {
    return bytes_of_ivalue(object);
  } else if constexpr (requires { bytes_of(object); }) {
    return bytes_of(object);
  } else {
    return bytes_of_archive([&](torch::serialize::OutputArchive& archive) { archive << object; });
  }
}

template <ValueObject T>
T value_from(std::string bytes, const T& former) {
  if constexpr (std::same_as<T, std::string>) {
    return bytes;
  } else if constexpr (Bytes<T>) {
    const auto* data = reinterpret_cast<const typename T::value_type*>(bytes.data());
    return T(data, data + bytes.size());
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return tensor_from(bytes, former);
  } else if constexpr (std::same_as<T, std::vector<at::Tensor>>) {
    return tensors_from(bytes, former);
  } else if constexpr (std::same_as<T, c10::IValue>) {
    return ivalue_from(bytes);
  } else {
    T value;
    read_archive(bytes, [&](torch::serialize::InputArchive& archive) { archive >> value; });
    return value;
  }
}

template <typename T>
std::string type_text() {
  return Bytes<T> ? "bytes" : type_text(typeid(T));
}

template <Object T>
ObjectCodec codec_of_object(T& object) {
  if constexpr (ModuleObject<T>) {
    return codec_of(module_in(object));
  } else if constexpr (OptimizerObject<T>) {
    return codec_of(static_cast<torch::optim::Optimizer&>(object));
  } else {
    ObjectCodec codec{.lines = {type_text<T>()}};
    codec.encode = [&object] { return bytes_of_object(object); };
    codec.decode = [&object](std::string bytes) -> std::function<void(bool)> {
      if constexpr (ValueObject<T>) {
        auto value = std::make_shared<T>(value_from<T>(std::move(bytes), object));
        return [&object, value](bool keep) {
          if (keep) object = std::move(*value);
        };
      } else {
        const auto load = [&object](const std::string& saved) {
          read_archive(saved, [&](torch::serialize::InputArchive& archive) { archive >> object; });
        };
        return load_or_undo([&object] { return bytes_of_object(object); }, load, bytes);
      }
    };
    return codec;
  }
}

template <typename T>
constexpr void check_object() {
  static_assert(Object<T>,
                "Ronde moves std::string, std::vector of bytes, at::Tensor, "
                "std::vector<at::Tensor>, c10::IValue, modules, optimizers, and types with "
                "operator<<(torch::serialize::OutputArchive&, const T&) and "
                "operator>>(torch::serialize::InputArchive&, T&) in their own namespace");
}

template <typename T>
ListCodec list_codec(const T& object, std::vector<T>& all) {
  check_object<T>();
  static_assert(!Object<T> || ValueObject<T>,
                "This object cannot be made from bytes alone (a module or optimizer has to be "
                "constructed first): gather ronde::save_bytes(object), and ronde::load_bytes() "
                "each into an object that you have constructed");
  return {
      .type = type_text<T>(),
      .encode = [&object] { return bytes_of_object(object); },
      .append = [&all](std::string bytes) { all.push_back(value_from<T>(std::move(bytes), T())); }};
}

}  // namespace detail

}  // namespace ronde
