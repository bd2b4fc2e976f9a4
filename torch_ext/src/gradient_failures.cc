// SPDX-License-Identifier: Apache-2.0
// What a GradientReducer does when a rank cannot do its part.
#include "gradient_failures.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gradient_reducer.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/objects.h"

namespace ronde::detail {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

}  // namespace

RefusedExchange::RefusedExchange(std::exception_ptr failure, at::Tensor parameter)
    : failure_(std::move(failure)), parameter_(std::move(parameter)) {}

std::vector<Prepared> RefusedExchange::begin(const AllreduceOptions& options) {
  const at::Tensor nothing =
      at::empty({0}, at::TensorOptions().dtype(at::kByte).device(parameter_.device()));
  const BroadcastOptions named{
      .name = options.name, .process_set = options.process_set, .timeout = options.timeout};
  std::vector<Prepared> prepared;
  prepared.push_back(
      prepare_in_place(request_for(Collective::Broadcast, nothing, named), nothing, true));
  return prepared;
}

std::vector<Prepared> RefusedExchange::proceed(const std::vector<TensorWork>&,
                                               std::optional<bool>) {
  std::rethrow_exception(failure_);
}

bool is_refusal_text(const std::string& text) {
  return text.find("broadcast u8 [0] root 0") != std::string::npos;
}

/// Whether every rank came through the last round. What would follow is dropped if not.
bool GradientReducer::can_all_go_on(std::exception_ptr& first_error) {
  try {
    const TensorWork failed = submit_flag("/failed", first_error != nullptr);
    if (failed.wait().item<std::uint8_t>() == 0) return true;
    was_refused_ = true;
  } catch (...) {
    if (!first_error) first_error = std::current_exception();
  }
  for (Slot& slot : slots_) {
    slot.next.clear();
    slot.exchange = nullptr;
  }
  return false;
}

/// Collective, once all ranks know that one has failed. A rank that has an error of its own keeps
/// it, the others get the texts of those.
void GradientReducer::tell_failures(std::exception_ptr& first_error) const {
  std::string mine = first_error ? text_of(first_error) : std::string();
  if (is_refusal_text(mine)) mine.clear();
  // It is told whose it is.
  if (mine.starts_with(rank_prefix())) mine.erase(0, rank_prefix().size());
  const std::vector<int> ranks = ranks_of(options_.process_set);
  const std::vector<std::string> texts =
      ronde::allgather_object(mine, {.name = scope_ + "/failures",
                                     .process_set = options_.process_set,
                                     .timeout = options_.timeout});
  if (!mine.empty()) return;
  std::string text;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty()) text += "\n  rank " + std::to_string(ranks.at(i)) + ": " + texts[i];
  }
  if (text.empty()) return;
  first_error = std::make_exception_ptr(
      UsageError("ronde::DistributedOptimizer(\"" + scope_ +
                 "\"): gradients were not reduced, as not all ranks could do their part:" + text +
                 "\nCall zero_grad() to go on without this step"));
}

}  // namespace ronde::detail
