// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Type.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include "ronde/error.h"
#include "ronde/torch/sync_batch_norm.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace {

using torch::nn::AnyModule;
using torch::nn::Module;
using torch::nn::SequentialImpl;

/// A child of a Sequential.
struct Place {
  SequentialImpl* sequential;
  std::string key;
  std::shared_ptr<Module> module;
  std::string path;
};

struct Plan {
  std::vector<Place> places;
  std::string refused;
};

/// Returns the number of dimensions of a batch norm of LibTorch, or of a class derived from one; 0
/// for other modules.
int dimensions_of(const Module& module) {
  if (module.as<torch::nn::BatchNorm1dImpl>() != nullptr) return 1;
  if (module.as<torch::nn::BatchNorm2dImpl>() != nullptr) return 2;
  if (module.as<torch::nn::BatchNorm3dImpl>() != nullptr) return 3;
  return 0;
}

/// Returns whether the module is a batch norm of LibTorch itself: a derived class may have another
/// forward.
bool is_plain(const Module& module) {
  const std::type_info& type = typeid(module);
  return type == typeid(torch::nn::BatchNorm1dImpl) || type == typeid(torch::nn::BatchNorm2dImpl) ||
         type == typeid(torch::nn::BatchNorm3dImpl);
}

bool runs(const SequentialImpl& sequential, const Module& module) {
  for (const AnyModule& one : sequential) {
    if (one.ptr().get() == &module) return true;
  }
  return false;
}

void refuse(Plan& plan, const std::string& path, const Module& module) {
  const std::string kind = std::to_string(dimensions_of(module)) + "d";
  plan.refused += "\n  " + (path.empty() ? "the module itself" : path) + ": " +
                  c10::demangle(typeid(module).name()) + ", to be a ronde::SyncBatchNorm" + kind;
}

void plan_below(Module& parent, const std::string& prefix, Plan& plan) {
  auto* const sequential = parent.as<SequentialImpl>();
  for (const auto& child : parent.named_children()) {
    const std::shared_ptr<Module>& module = child.value();
    // An optional child that was not set.
    if (!module) continue;
    const std::string path = prefix + child.key();
    if (dimensions_of(*module) == 0) {
      plan_below(*module, path + ".", plan);
    } else if (sequential != nullptr && is_plain(*module) && runs(*sequential, *module)) {
      plan.places.push_back({sequential, child.key(), module, path});
    } else {
      refuse(plan, path, *module);
    }
  }
}

AnyModule converted(const Module& module, const std::string& path,
                    const ConvertSyncBatchNormOptions& options) {
  const auto complete = [&](const torch::nn::BatchNormOptions& theirs) {
    SyncBatchNormOptions ours(theirs);
    ours.name(options.name + path).process_set(options.process_set).timeout(options.timeout);
    return ours;
  };
  if (const auto* one = module.as<torch::nn::BatchNorm1dImpl>()) {
    return AnyModule(std::make_shared<SyncBatchNorm1dImpl>(*one, complete(one->options)));
  }
  if (const auto* two = module.as<torch::nn::BatchNorm2dImpl>()) {
    return AnyModule(std::make_shared<SyncBatchNorm2dImpl>(*two, complete(two->options)));
  }
  const auto& three = dynamic_cast<const torch::nn::BatchNorm3dImpl&>(module);
  return AnyModule(std::make_shared<SyncBatchNorm3dImpl>(three, complete(three.options)));
}

}  // namespace

std::size_t convert_sync_batch_norm(Module& module, const ConvertSyncBatchNormOptions& options) {
  Plan plan;
  if (dimensions_of(module) != 0) {
    refuse(plan, "", module);
  } else {
    plan_below(module, "", plan);
  }
  if (!plan.refused.empty()) {
    throw UsageError(
        detail::rank_prefix() +
        "ronde::convert_sync_batch_norm: a batch norm of LibTorch can be exchanged inside a "
        "torch::nn::Sequential only. Declare in the model as ours:" +
        plan.refused);
  }
  // A module that several places share stays shared.
  std::map<const Module*, AnyModule> done;
  for (const Place& place : plan.places) {
    AnyModule& ours = done[place.module.get()];
    if (ours.is_empty()) ours = converted(*place.module, place.path, options);
    for (AnyModule& one : *place.sequential) {
      if (one.ptr() == place.module) one = ours;
    }
    place.sequential->replace_module(place.key, ours.ptr());
  }
  return done.size();
}

}  // namespace ronde
