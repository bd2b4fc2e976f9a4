// SPDX-License-Identifier: Apache-2.0
#include "core/src/tune/autotuner.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <sstream>
#include <utility>

#include "core/src/base/fingerprint.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Identify the model after this many steps: operations that are submitted again count, as those
/// that are submitted once in a run belong to no step.
constexpr std::size_t kStepsToIdentify = 3;
constexpr std::chrono::milliseconds kFirstInterval{500};
constexpr std::size_t kIntervalsWithoutMark = 32;
/// Stop identifying after this many decisions: the program submits something else each time.
constexpr std::size_t kDecisionsToIdentify = 10'000;
/// Warn once this many measurements show alternating step times; a single one may be noise.
constexpr std::size_t kAlternating = 3;
/// Warn about a change that has not been applied after this many steps.
constexpr std::size_t kStepsToChange = 50;

/// The variable that `ronde tune --collectives` writes into the file: it holds for any model.
constexpr const char* kRules = "RONDE_ALGORITHMS";

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string text_of(const std::map<std::string, std::string>& values) {
  std::string text;
  for (const auto& [name, value] : values) text += (text.empty() ? "" : ", ") + name + "=" + value;
  return text;
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", seconds * 1000);
  return text;
}

std::string place_text(int ranks, int hosts) {
  return std::to_string(ranks) + " ranks on " + std::to_string(hosts) +
         (hosts == 1 ? " host" : " hosts");
}

void append(std::string& bytes, std::uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

std::string tuned_values(RuntimeOptions& options, const Topology& topology, const Logger& log) {
  std::optional<TunedSettings>& known = options.tuning.known;
  if (!known) return {};
  const std::string file = "RONDE_TUNED: " + options.config.tuned;
  const auto refuse = [&](const std::string& why) {
    log.warning(file + why);
    known.reset();
    return std::string();
  };
  const int hosts = topology.hosts();
  if (known->ranks != 0 && (known->ranks != topology.size || known->hosts != hosts)) {
    return refuse(" was tuned for " + place_text(known->ranks, known->hosts) + ", and these are " +
                  place_text(topology.size, hosts) + ": it is not used");
  }
  if (!known->finished && !options.config.autotune) {
    return refuse(
        " is of a search that did not end, and is not used: RONDE_AUTOTUNE=1 goes on with it");
  }
  std::map<std::string, std::string> values = known->values;
  for (const std::string& name : options.tuning.fixed) values.erase(name);
  std::string lines;
  for (const auto& [name, value] : values) lines += name + "=" + value + "\n";
  try {
    check_config(with_values(options.config, lines));
  } catch (const Error& error) {
    return refuse(std::string(" is not used: ") + error.what());
  }
  if (!values.empty()) log.info(file + ": " + text_of(values));
  return lines;
}

Config with_values(Config config, std::string_view lines) {
  std::istringstream in{std::string(lines)};
  std::string name, value;
  while (std::getline(in, name, '=') && std::getline(in, value)) {
    const auto& table = config_table();
    const auto entry = std::ranges::find(table, name, &ConfigEntry::name);
    if (entry == table.end()) throw UsageError("this Ronde has no variable " + name);
    entry->set(config, value);
  }
  return config;
}

void ModelSignature::add(const OpSpec& spec) {
  std::string bytes = spec.name;
  append(bytes, static_cast<std::uint64_t>(spec.kind));
  append(bytes, static_cast<std::uint64_t>(spec.dtype));
  for (const std::int64_t dimension : spec.shape) {
    append(bytes, static_cast<std::uint64_t>(dimension));
  }
  operations_.insert(detail::fingerprint(bytes));
}

std::string ModelSignature::text() const {
  if (operations_.empty()) return {};
  std::string bytes;
  for (const std::uint64_t operation : operations_) append(bytes, operation);
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, detail::fingerprint(bytes));
  return text.data();
}

Autotuner::Autotuner(const RuntimeOptions& options, const Topology& topology, const Logger& log,
                     bool may_freeze)
    : options_(options),
      topology_(topology),
      log_(log),
      may_freeze_(may_freeze),
      in_force_(tuning_of(options.config)) {}

void Autotuner::record_step(TimePoint now) {
  const std::lock_guard lock(mutex_);
  ends_.push_back(now);
}

bool Autotuner::has_steps() const {
  const std::lock_guard lock(mutex_);
  return !ends_.empty();
}

void Autotuner::process_steps(bool frozen, std::uint64_t bytes, TimePoint now) {
  std::vector<TimePoint> ends;
  {
    const std::lock_guard lock(mutex_);
    ends.swap(ends_);
  }
  if (measure_ != Measure::Marks && !ends.empty()) begin_with_marks();
  if (measure_ != Measure::Marks) return count_bytes(frozen, bytes, now);
  for (const TimePoint end : ends) {
    const auto since = std::exchange(since_, end);
    add_step(since ? seconds_between(*since, end) : 0, frozen);
  }
}

/// Discards the measurements by bytes, as the program has marked a step.
void Autotuner::begin_with_marks() {
  measure_ = Measure::Marks;
  since_.reset();
  seen_ = 0;
  if (!identified_) return;
  identified_ = false;
  tuner_.reset();
  phase_.clear();
  const Tuning start = tuning_of(options_.config);
  if (in_force_ != start) fallback_ = start;
}

void Autotuner::count_bytes(bool frozen, std::uint64_t bytes, TimePoint now) {
  // Without since_ the first interval begins; a process set that is removed takes its bytes along.
  if (!since_ || bytes < bytes_at_start_) {
    since_ = bytes > 0 ? std::optional(now) : std::nullopt;
    bytes_at_start_ = bytes;
    return;
  }
  const std::uint64_t moved = bytes - bytes_at_start_;
  const bool is_over = measure_ == Measure::Bytes ? moved >= interval_bytes_
                                                  : moved > 0 && now - *since_ >= kFirstInterval;
  if (!is_over) return;
  const TimePoint since = *std::exchange(since_, now);
  bytes_at_start_ = bytes;
  if (measure_ == Measure::Undecided) {
    interval_bytes_ = moved;
    if (++intervals_ > kIntervalsWithoutMark) measure_ = Measure::Bytes;
    return;
  }
  const double parts = static_cast<double>(moved) / static_cast<double>(interval_bytes_);
  add_step(seconds_between(since, now) / parts, frozen);
}

void Autotuner::add_step(double seconds, bool frozen) {
  if (++seen_ == kStepsToIdentify) identify();
  if (tuner_ && !fallback_) {
    if (const auto trial = tuner_->record_step(seconds, frozen)) report(*trial);
  }
  if (wanted() && ++steps_to_change_ == kStepsToChange) {
    log_.warning("RONDE_AUTOTUNE: no operation of all ranks came for " +
                 std::to_string(kStepsToChange) +
                 " steps, and settings change with one: a program that works in process sets alone "
                 "is not tuned");
  }
  update_active();
}

void Autotuner::update_active() {
  const bool searches = tuner_ && !tuner_->finished();
  active_.store(!identified_ || searches || wanted(), std::memory_order_relaxed);
}

void Autotuner::observe(const DecisionMessage& decision, const Announcer& announcer) {
  if (identified_ || decisions_ == kDecisionsToIdentify) return;
  ++decisions_;
  const auto add = [&](std::uint32_t slot) { signature_.add(*announcer.response(slot).spec); };
  decision.cached.for_each([&](std::size_t bit) { add(static_cast<std::uint32_t>(bit)); });
  for (const KeyedSlot& item : decision.keyed) add(item.slot);
}

void Autotuner::identify() {
  identified_ = true;
  const std::string model = signature_.text();
  const std::optional<TunedSettings>& known = options_.tuning.known;
  const bool fits = known && (known->model.empty() || model.empty() || known->model == model);
  keeps_file_ = fits;
  if (known && !fits) {
    log_.warning("RONDE_TUNED: " + options_.config.tuned + " was tuned for another model (" +
                 known->model + ", and this is " + model + "); " +
                 (options_.config.autotune
                      ? "the search begins anew"
                      : "the defaults hold. Tune this one with RONDE_AUTOTUNE=1, or into a file of "
                        "its own"));
    fallback_ = defaults() != in_force_ ? std::optional(defaults()) : std::nullopt;
  }
  const bool is_tuned =
      fits && known->finished && known->values.size() > known->values.count(kRules);
  if (!options_.config.autotune || is_tuned) return;
  const Tuning start = fallback_.value_or(in_force_);
  const std::vector<Tuning> starts = {start, defaults()};
  tuner_.emplace(tune_space(starts, options_.tuning.fixed, may_freeze_), starts, may_freeze_);
  if (tuner_->finished()) log_.info("RONDE_AUTOTUNE: every variable that it changes is set");
}

/// Returns the settings without a tuned file.
Tuning Autotuner::defaults() const {
  Config config;
  for (const ConfigEntry& entry : config_table()) {
    const auto& fixed = options_.tuning.fixed;
    const bool is_fixed = std::ranges::find(fixed, entry.name) != fixed.end();
    if (is_fixed) entry.set(config, entry.get(options_.config));
  }
  return tuning_of(config);
}

void Autotuner::report(const TuneTrial& trial) {
  if (options_.tuning.on_trial) options_.tuning.on_trial(trial);
  if (tuner_->alternating() == kAlternating && !std::exchange(warned_of_turns_, true)) {
    log_.warning(
        "RONDE_AUTOTUNE: every other step takes more than twice as long as the one before it, and "
        "two are measured as one. If DistributedOptimizer::step() and mark_step() both mark each "
        "step, mark it once");
  }
  const TunedSettings settings = tuner_->settings();
  if (!tuner_->finished()) {
    // A later run continues the search, and a file that cannot be written is reported early.
    if (std::exchange(phase_, trial.phase) != trial.phase) publish_settings(settings);
    return;
  }
  const std::string steps = std::to_string(tuner_->steps()) + " steps";
  if (tuner_->gain() > 0) {
    log_.info("RONDE_AUTOTUNE: after " + steps + ": " + text_of(settings.values) +
              "; a step takes " + milliseconds(settings.step_s) + " instead of " +
              milliseconds(settings.start_step_s));
  } else {
    log_.info("RONDE_AUTOTUNE: after " + steps + ": nothing is clearly faster than " +
              text_of(settings.values));
  }
  publish_settings(settings);
}

void Autotuner::publish_settings(TunedSettings settings) const {
  settings.model = signature_.text();
  settings.ranks = topology_.size;
  settings.hosts = topology_.hosts();
  settings.keeps_file = keeps_file_;
  if (const auto& known = options_.tuning.known) {
    const auto rules = known->values.find(kRules);
    if (rules != known->values.end()) settings.values.insert(*rules);
  }
  if (options_.tuning.on_tuned) options_.tuning.on_tuned(settings);
}

std::optional<Tuning> Autotuner::wanted() const {
  if (fallback_) return fallback_;
  return tuner_ ? tuner_->wanted() : std::nullopt;
}

void Autotuner::on_applied() {
  in_force_ = wanted().value_or(in_force_);
  steps_to_change_ = 0;
  if (fallback_) {
    fallback_.reset();
  } else if (tuner_) {
    tuner_->on_applied();
  }
  update_active();
}

}  // namespace ronde
