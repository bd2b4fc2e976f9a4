// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/replica_check.h"

#include <c10/util/StringUtil.h>
#include <torch/serialize.h>

#include <algorithm>
#include <bit>
#include <ios>
#include <iterator>
#include <span>
#include <unordered_map>

#include "core/src/base/fingerprint.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/replicas.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {
namespace detail {
namespace {

constexpr const char* kAdvice =
    "Before the first step, and after join(), call broadcast_parameters() and "
    "broadcast_optimizer_state(); change options of the inner optimizer (the learning rate) on all "
    "ranks alike; call synchronize() before gradients are changed (clip_grad_norm_). Where ranks "
    "are to differ, name the parameters in local_parameters, or set RONDE_CHECK_REPLICAS=off";

constexpr const char* kProgressAdvice =
    "All ranks must step equally often and with the same learning rates. Where one drops a step "
    "(its loss is not finite, say), all have to: agree on it by an allreduce. Give schedulers what "
    "is equal on all ranks, such as the average of their losses. Go on from a checkpoint, or call "
    "broadcast_parameters() and broadcast_optimizer_state(). Where ranks are to differ, set "
    "RONDE_CHECK_REPLICAS=off";

/// Size of a step's window: bytes of parameters, or this part of the model if that is more, in at
/// most kMostPieces parameters, as finding the state of small ones costs time.
constexpr std::int64_t kLeastWindow = std::int64_t{64} << 10;
constexpr std::int64_t kWindowsOfModel = 512;
constexpr std::size_t kMostPieces = 4;
/// After this number of digests that differ without a cause the window is left out, as each costs
/// two comparisons.
constexpr int kMostUnexplained = 8;

/// Describes elements in logical order, whatever the strides. Waits for the tensor's GPU.
std::string describe_values(const std::string& name, const at::Tensor& tensor) {
  const std::string text = name + ": " + describe(tensor);
  if (!tensor.defined()) return text;
  const at::Tensor values = plain_values(tensor).cpu();
  const auto* const data = static_cast<const std::byte*>(values.const_data_ptr());
  return c10::str(text, ", checksum ", std::hex, fingerprint_of_words(data, values.nbytes()));
}

/// Uses LibTorch's serialize(), which has the options' names.
void append_options(std::vector<std::string>& lines, const std::string& owner,
                    const torch::optim::OptimizerOptions& options) {
  const std::string bytes = bytes_of_archive([&](auto& archive) { options.serialize(archive); });
  read_archive(bytes, [&](torch::serialize::InputArchive& archive) {
    for (const std::string& key : archive.keys()) {
      c10::IValue value;
      archive.read(key, value);
      lines.push_back(c10::str("option ", key, " of ", owner, ": ", value));
    }
  });
}

/// Returns none where nothing is ever compared.
std::optional<std::uint64_t> period_for(ProcessSet set) {
  const Runtime& runtime = runtime_of(set);
  if (runtime.ranks_of(set).size() == 1) return std::nullopt;
  return replica_check_period(runtime.config());
}

/// Returns whether the ranks can compare the elements in their order in memory.
bool is_comparable(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu() &&
         tensor.is_non_overlapping_and_dense() && tensor.strides() == parameter.strides() &&
         tensor.sizes() == parameter.sizes();
}

}  // namespace

ReplicaCheck::ReplicaCheck(const torch::optim::Optimizer& inner, std::string subject,
                           const DistributedOptimizerOptions& options)
    : inner_(inner),
      subject_(std::move(subject)),
      options_(options),
      set_(options.process_set),
      period_(period_for(set_)),
      joins_(runtime_of(set_).joins(set_)) {}

void ReplicaCheck::watch(const std::vector<NamedParameter>& parameters) {
  std::ranges::remove_copy_if(parameters, std::back_inserter(parameters_),
                              &NamedParameter::is_local);
  std::int64_t bytes = 0;
  std::unordered_map<const c10::TensorImpl*, const std::string*> names;
  for (const NamedParameter& named : parameters_) {
    bytes += static_cast<std::int64_t>(named.parameter.nbytes());
    names.emplace(named.parameter.unsafeGetTensorImpl(), &named.name);
  }
  window_bytes_ = std::max(kLeastWindow, bytes / kWindowsOfModel);
  groups_.clear();
  for (std::size_t i = 0; i < inner_.param_groups().size(); ++i) {
    const auto& group = inner_.param_groups()[i];
    for (const at::Tensor& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      if (name == names.end() || !group.has_options()) continue;
      groups_.push_back({i, "the parameter group of \"" + *name->second + "\""});
      // A class of the program may lack get_lr().
      groups_.back().has_rate = problem_of([&] { group.options().get_lr(); }).empty();
      break;
    }
  }
  restart();  // on all ranks alike: they compare in the next reduction
}

/// Restarts the counts, so that everything is compared next. All ranks do so after the same
/// reduction.
void ReplicaCheck::restart() noexcept {
  reductions_ = steps_ = 0;
  differing_.reset();
  next_ = {};
  unexplained_ = 0;
  has_window_ = true;
}

void ReplicaCheck::restart_after_join() {
  const std::uint64_t joins = runtime_of(set_).joins(set_);
  if (joins == joins_) return;
  joins_ = joins;
  restart();
}

/// Note [Comparing replicas].
bool ReplicaCheck::is_due() {
  restart_after_join();
  const std::uint64_t number = reductions_++;
  return number == 0 || (*period_ > 0 && number % *period_ == 0);
}

/// Returns null if there are none: the program may have regrouped the parameters.
const torch::optim::OptimizerOptions* ReplicaCheck::options_of(const Group& group) const {
  const auto& groups = inner_.param_groups();
  const bool is_there = group.index < groups.size() && groups[group.index].has_options();
  return is_there ? &groups[group.index].options() : nullptr;
}

/// Rounds to f32: Note [Digests of steps].
double ReplicaCheck::rate_of(const Group& group) const {
  const auto* const options = options_of(group);
  return group.has_rate && options != nullptr ? static_cast<float>(options->get_lr()) : 0;
}

StateSlots ReplicaCheck::state_of(const NamedParameter& named) const {
  if (options_.op == ReduceOp::Adasum && options_.adasum_of_deltas) return {};  // each rank's own
  const auto found = inner_.state().find(named.parameter.unsafeGetTensorImpl());
  return found == inner_.state().end() ? StateSlots() : shaped_slots(*found->second);
}

/// Fills the window with the next ranges of parameters; the first parameter follows the last.
void ReplicaCheck::advance_window() {
  std::vector<Piece>& window = digested_.window;
  std::int64_t left = window_bytes_;
  const std::size_t most = std::min(kMostPieces, parameters_.size());
  while (window.size() < most && left > 0) {
    if (next_.parameter >= parameters_.size()) next_ = {};
    const at::Tensor& parameter = parameters_[next_.parameter].parameter;
    const auto size = static_cast<std::int64_t>(parameter.element_size());
    next_.end = std::min(parameter.numel(), next_.first + std::max<std::int64_t>(left / size, 1));
    window.push_back(next_);
    left -= (next_.end - next_.first) * size;
    next_.first = next_.end;
    if (next_.end >= parameter.numel()) next_ = {.parameter = next_.parameter + 1};
  }
}

/// Returns the fingerprints of these elements of the parameter and of each tensor of its state.
std::vector<std::pair<std::string, std::uint64_t>> ReplicaCheck::fingerprints(
    const Piece& piece) const {
  std::vector<std::pair<std::string, std::uint64_t>> all;
  const NamedParameter& named = parameters_[piece.parameter];
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!is_comparable(tensor, named.parameter) || piece.end > tensor.numel()) return;
    const auto size = static_cast<std::int64_t>(tensor.element_size());
    const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
    all.emplace_back(
        name, fingerprint_of_words(data + piece.first * size,
                                   static_cast<std::size_t>((piece.end - piece.first) * size)));
  };
  add("parameter", named.parameter);
  for (const auto& [name, tensor] : state_of(named)) add(std::string(name) + " of", *tensor);
  return all;
}

std::uint64_t ReplicaCheck::digest() {
  if (!period_ || parameters_.empty()) return 0;
  restart_after_join();
  digested_ = {.reductions = reductions_, .steps = steps_, .rates = {}, .window = {}};
  std::vector<std::uint64_t> words = {reductions_, steps_};
  for (const Group& group : groups_) {
    digested_.rates.push_back(rate_of(group));
    words.push_back(std::bit_cast<std::uint64_t>(digested_.rates.back()));
  }
  if (has_window_) advance_window();
  for (const Piece& piece : digested_.window) {
    for (const auto& [name, fingerprint] : fingerprints(piece)) words.push_back(fingerprint);
  }
  const auto bytes = std::as_bytes(std::span(words));
  return fingerprint_of_words(bytes.data(), bytes.size()) >> 1 | 1;  // neither 0 nor all ones
}

std::vector<std::string> ReplicaCheck::describe_progress(const Digested& digested) const {
  std::vector<std::string> lines = {
      c10::str(digested.steps, " steps in ", digested.reductions, " reductions")};
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (!groups_[i].has_rate) continue;
    lines.push_back(c10::str("learning rate ", digested.rates.at(i), " of ", groups_[i].text));
  }
  return lines;
}

std::vector<std::string> ReplicaCheck::describe_window(const Digested& digested) const {
  std::vector<std::string> lines;
  for (const Piece& piece : digested.window) {
    for (const auto& [what, fingerprint] : fingerprints(piece)) {
      lines.push_back(c10::str(what, " \"", parameters_[piece.parameter].name, "\", elements ",
                               piece.first, " to ", piece.end - 1, ": checksum ", std::hex,
                               fingerprint));
    }
  }
  return lines;
}

std::vector<std::string> ReplicaCheck::describe_options() const {
  std::vector<std::string> lines;
  for (const Group& group : groups_) {
    const auto* const options = options_of(group);
    if (options == nullptr) continue;
    // A class of the program may lack serialize().
    const std::string problem = problem_of([&] { append_options(lines, group.text, *options); });
    if (!problem.empty()) {
      lines.push_back("options of " + group.text + ", which cannot be compared");
    }
  }
  return lines;
}

std::vector<std::string> ReplicaCheck::describe_tensors() const {
  std::vector<std::string> lines;
  for (const NamedParameter& named : parameters_) {
    lines.push_back(describe_values("parameter " + named.name, named.parameter));
  }
  for (const NamedParameter& named : parameters_) {
    for (const auto& [name, tensor] : state_of(named)) {
      if (!tensor->defined()) continue;
      lines.push_back(describe_values(std::string(name) + " of " + named.name, *tensor));
    }
  }
  return lines;
}

void ReplicaCheck::start() {
  if (!period_ || !is_due()) return;
  Statement mine;
  mine.problem = problem_of([&] {
    mine.lines = describe_options();
    const std::vector<std::string> tensors = describe_tensors();
    mine.lines.insert(mine.lines.end(), tensors.begin(), tensors.end());
  });
  comparison_.emplace(subject_, mine, set_,
                      AgreementOptions{.advice = kAdvice, .timeout = options_.timeout});
}

void ReplicaCheck::finish() {
  if (comparison_) refuse(std::exchange(comparison_, std::nullopt)->difference());
  if (!differing_) return;
  const Digested digested = *std::exchange(differing_, std::nullopt);
  refuse(difference(describe_progress(digested), kProgressAdvice));
  compare_window(digested);
}

/// Throws UsageError if there is a difference.
void ReplicaCheck::refuse(const std::string& difference) {
  if (difference.empty()) return;
  restart();  // on all ranks: they compare everything in the next reduction
  throw UsageError(difference);
}

std::string ReplicaCheck::difference(std::vector<std::string> lines, const char* advice) const {
  return Comparison(subject_, {.lines = std::move(lines)}, set_,
                    {.advice = advice, .timeout = options_.timeout})
      .difference();
}

/// Digests may differ although no line does: another optimizer's was in the same bucket, a rank
/// lays out its state differently, or the program wrote a parameter between backward and step.
void ReplicaCheck::compare_window(const Digested& digested) {
  const std::string text = difference(describe_window(digested), kAdvice);
  if (text.empty()) {
    has_window_ = has_window_ && ++unexplained_ < kMostUnexplained;
    return;
  }
  if (*period_ > 0) refuse(text);
  has_window_ = false;
  if (rank_in(set_) != 0) return;
  rank_log(set_).warning(
      text + "\nThe ranks have diverged since they started alike, and train on. This is logged " +
      "once; RONDE_CHECK_REPLICAS=N (every N steps) makes it an error");
}

}  // namespace detail

void check_replicas(const torch::OrderedDict<std::string, at::Tensor>& tensors,
                    ProcessSet process_set) {
  const std::string subject = "ronde::check_replicas";
  detail::check_member(subject, process_set);
  detail::Statement mine;
  mine.problem = detail::problem_of([&] {
    for (const auto& item : tensors) {
      mine.lines.push_back(detail::describe_values("parameter " + item.key(), item.value()));
    }
  });
  const std::string text =
      detail::Comparison(subject, mine, process_set, {.advice = detail::kAdvice}).difference();
  if (!text.empty()) throw UsageError(text);
}

void check_replicas(const torch::nn::Module& module, ProcessSet process_set) {
  check_replicas(module.named_parameters(), process_set);
}

}  // namespace ronde
