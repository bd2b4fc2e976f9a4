// SPDX-License-Identifier: Apache-2.0
#include "observe/report/report.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <optional>
#include <regex>

#include "core/src/base/fmt.h"
#include "observe/report/breakdown.h"
#include "observe/report/text.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;
using Found = std::optional<Finding>;

constexpr double kMiB = 1024 * 1024;
/// With fewer, the first one's costs look like every step's.
constexpr std::uint64_t kFewestSteps = 5;

/// Limits a cost to the exposed time of a step, where that was measured.
double at_most_exposed(const StepMeans& step, double us) {
  return step.time_us > 0 ? std::min(us, step.exposed_us) : us;
}

double power_of_two_below(double bytes) {
  return std::exp2(std::floor(std::log2(bytes)));
}

/// The rank's mean of a distribution in its own figures, and that of the other ranks.
std::pair<double, double> own_and_others(const Profile& run, int rank, auto mean_of) {
  double own = 0;
  double others = 0;
  for (const auto& [number, figures] : run.per_rank) {
    (number == rank ? own : others) += mean_of(figures);
  }
  return {own, others / std::max(1.0, run.measured_ranks() - 1)};
}

/// Says what the slow rank does longer than the others, or where to look.
std::string why_slow(const Profile& run, int rank) {
  constexpr double kLonger = 1.2;
  const auto says = [](const std::string& what, const std::pair<double, double>& times) {
    return fmt::format(": its {} takes {} a step, that of the others {}", what,
                       time_text(times.first), time_text(times.second));
  };
  std::string worst;
  double longest = 0;
  const auto compare = [&](const std::string& what, auto mean_of) {
    const auto times = own_and_others(run, rank, mean_of);
    if (times.first < kLonger * times.second || times.first - times.second <= longest) return;
    longest = times.first - times.second;
    worst = says(what, times);
  };
  for (const auto& [name, span] : run.merged.spans) {
    compare("span \"" + name + "\"", [&, key = name](const Figures& each) {
      const auto found = each.spans.find(key);
      const auto steps = static_cast<double>(std::max<std::uint64_t>(each.steps, 1));
      return found == each.spans.end() ? 0 : total_us(found->second.time) / steps;
    });
  }
  compare("backward", [](const Figures& each) { return mean_us(each.backward); });
  return worst.empty() ? ": look at its data and its cores" : worst;
}

constexpr double kLostShare = 0.05;  ///< of a step, or of the run where no steps tell

Found slow_rank(const Profile& run, const StepMeans& step) {
  std::map<int, double> for_rank;
  double all = 0;
  for (const LostTime& each : lost_times(run)) {
    all += each.us;
    for (const auto& [late, us] : each.for_rank) {
      if (late >= 0) for_rank[late] += us;
    }
  }
  const auto worst =
      std::ranges::max_element(for_rank, {}, [](const auto& each) { return each.second; });
  if (worst == for_rank.end() || run.ranks < 2) return {};
  const double needed = run.ranks == 2 ? 0.75 : std::max(0.5, 1.5 / run.ranks);
  const bool has_steps = step.time_us > 0;
  const double whole = has_steps ? step.time_us : run.merged.seconds * 1e6;
  const double cost = worst->second / std::max(1.0, run.measured_ranks() - 1);
  if (worst->second < needed * all || cost <= kLostShare * whole) return {};
  std::uint64_t messages = 0;
  for (const auto& [rank, last] : run.merged.last_ranks) messages += last.count;
  const double share = static_cast<double>(run.merged.last_ranks.at(worst->first).count) /
                       static_cast<double>(std::max<std::uint64_t>(messages, 1));
  return Finding{
      "slow_rank",
      fmt::format("rank {} came last for {} of messages; the others waited {} {} ({}) for it{}",
                  worst->first, percent_text(share), time_text(cost),
                  has_steps ? "a step" : "in the run", percent_text(cost / whole),
                  why_slow(run, worst->first)),
      cost,
      {{"rank", worst->first}, {"share_of_messages", share}, {"lost_us", cost}}};
}

/// Finds ranks that wait now for one rank, now for another.
Found waiting_ranks(const Profile& run, const StepMeans& step) {
  const std::vector<LostTime> lost = lost_times(run);
  if (run.ranks < 2 || lost.empty() || slow_rank(run, step)) return {};
  const LostTime& most = lost.front();
  if (most.share <= kLostShare) return {};
  double all = 0;
  for (const LostTime& each : lost) all += each.us;
  return Finding{
      "waiting_ranks",
      fmt::format(
          "ranks wait for each other: rank {} loses {} {} ({}), most of it for {}; look in "
          "a timeline (RONDE_TIMELINE) for what ranks do at different times, and even it out",
          most.rank, time_text(most.us), step.time_us > 0 ? "a step" : "in the run",
          percent_text(most.share), most.latest()),
      all / run.measured_ranks(),
      {{"rank", most.rank}, {"share_of_step", most.share}, {"lost_us", most.us}}};
}

Found changing_names(const Profile& run, const StepMeans& step) {
  const double misses = run.counter("response_cache", "misses");
  const double known = run.counter("response_cache", "hits") + run.counter("schedule", "tensors");
  if (run.merged.steps < kFewestSteps || misses == 0) return {};
  const double share = misses / (misses + known);
  constexpr std::uint64_t kManySteps = 20;
  if (share < (run.merged.steps < kManySteps ? 0.7 : 0.4)) return {};
  const double tensors = run.a_step(misses + known);
  const double cost =
      at_most_exposed(step, step.negotiate_us + run.a_step(total_us(run.merged.gather)));
  const Json figures = {{"misses", misses}, {"operations", misses + known}};
  const std::string capacity = run.setting("RONDE_CACHE_CAPACITY");
  if (!capacity.empty() && tensors > std::strtod(capacity.c_str(), nullptr)) {
    return Finding{
        "small_cache",
        fmt::format(
            "{} of operations were announced in full: {} a step do not fit "
            "into RONDE_CACHE_CAPACITY={}; raise it above their number, and use one name in "
            "every step, or none",
            percent_text(share), count_text(tensors, "operation"), capacity),
        cost, figures};
  }
  return Finding{
      "changing_names",
      fmt::format("names change from step to step: {} of {} were announced in full "
                  "(response_cache.misses), {}; use one name in every step, or none{}",
                  percent_text(share), count_text(misses + known, "operation"),
                  run.counter("schedule", "freezes") == 0 ? "and the schedule never froze"
                                                          : "and the schedule thawed again",
                  capacity.empty() ? ", and no more of them than RONDE_CACHE_CAPACITY" : ""),
      cost, figures};
}

Found thaws(const Profile& run, const StepMeans& step) {
  constexpr double kOften = 0.3;
  const auto count = [&](const char* name) { return run.a_step(run.counter("schedule", name)); };
  const double unwanted = count("thaws") - count("thaws_by_tuning");  // those are on purpose
  if (run.merged.steps < kFewestSteps || unwanted < kOften) return {};
  const std::array<std::pair<const char*, const char*>, 3> reasons = {
      {{"thaws_by_submission",
        "a tensor came that the schedule does not have: submit the same tensors under the same "
        "names in every step"},
       {"thaws_by_wait",
        "the program waited for a tensor whose bucket was not complete: submit all gradients "
        "before the first wait"},
       {"thaws_by_time_limit",
        "a bucket was not complete in time: look for a rank that skips tensors or is late"}}};
  const auto& worst = *std::ranges::max_element(
      reasons, {}, [&](const auto& reason) { return count(reason.first); });
  const std::string why = count(worst.first) > 0 ? worst.second : "no reason was counted";
  return Finding{"thaws",
                 fmt::format("the frozen schedule is thawed {:.1f} times a step; {} of thaws: {}",
                             unwanted, percent_text(count(worst.first) / unwanted), why),
                 at_most_exposed(step, step.negotiate_us),
                 {{"thaws_per_step", unwanted}, {"reason", worst.first}}};
}

/// The time of a message besides its bytes: the medians of agreement and completion. Many messages
/// wait at the same time, so all together take no more than a rank waits, and with a slow rank no
/// more than that one waits.
double cost_of_message(const Profile& run, const StepMeans& step) {
  const MessageFigures all = all_messages(run.merged);
  const double each = us_of(all.phase(Phase::Negotiate).quantile_ns(0.5)) +
                      us_of(all.phase(Phase::Complete).quantile_ns(0.5));
  if (step.time_us == 0) return each;
  double most = step.exposed_us;
  if (const Found slow = slow_rank(run, step)) {
    const auto own = run.per_rank.find(slow->figures.at("rank"));
    if (own != run.per_rank.end()) most = mean_us(own->second.exposed);
  }
  return std::min(each, most / std::max(1.0, step.messages));
}

Found small_fusion(const Profile& run, const StepMeans& step) {
  constexpr double kBuffer = 64 * kMiB;  // the default
  constexpr double kMany = 16;
  constexpr double kShareOfStep = 0.05;
  const double fusion = run.fusion_bytes();
  if (fusion < 0 || fusion >= kBuffer) return {};
  if (run.merged.steps == 0 || step.messages < kMany) return {};
  const double needed = std::ceil(step.bytes / kBuffer);
  const bool full = fusion == 0 || step.bytes / step.messages > 0.4 * fusion;
  if (!full || step.messages < 4 * needed) return {};
  if (step.time_us > 0 && step.exposed_share() < kShareOfStep) return {};
  const double extra = step.messages - needed;
  const double wanted = std::min(kBuffer, 2 * power_of_two_below(step.bytes / 4));
  const std::string advice =
      wanted > 2 * fusion ? setting_text(std::max(wanted, kMiB)) : setting_text(kBuffer);
  const double each = cost_of_message(run, step);
  return Finding{
      "small_fusion",
      fmt::format("the fusion buffer is too small: {} of {} a step at RONDE_FUSION_BYTES={}, each "
                  "of which takes {} besides its bytes; try RONDE_FUSION_BYTES={}",
                  count_text(step.messages, "message"), amount_text(step.bytes / step.messages),
                  setting_text(fusion), time_text(each), advice),
      at_most_exposed(step, extra * each),
      {{"messages_per_step", step.messages},
       {"fusion_bytes", fusion},
       {"mean_bytes", step.bytes / step.messages}}};
}

Found empty_messages(const Profile& run, const StepMeans& step) {
  constexpr double kMany = 16;
  constexpr double kFill = 0.1;
  const double fusion = run.fusion_bytes();
  if (fusion <= 0 || step.messages < kMany || step.exposed_share() < 0.1) return {};
  const double fill = step.bytes / step.messages / std::min(fusion, step.bytes);
  const std::string cycle = run.setting("RONDE_CYCLE_TIME_MS");
  if (fill > kFill || cycle.empty()) return {};
  // A longer cycle helps neither a frozen schedule nor what is sent because the program waits.
  const bool is_frozen =
      run.counter("schedule", "tensors") > static_cast<double>(run.merged.operations) / 2;
  const double flushes = run.a_step(run.counter("submission", "flushes_by_waiters"));
  if (is_frozen || flushes > step.messages / 2) return {};
  const double ms = std::max(1.0, 2 * std::strtod(cycle.c_str(), nullptr));
  const double each = cost_of_message(run, step);
  return Finding{
      "empty_messages",
      fmt::format("{} a step of {} each fill {} of the fusion buffer, and each takes {} besides "
                  "its bytes: try RONDE_CYCLE_TIME_MS={:.3g} instead of {}",
                  count_text(step.messages, "message"), amount_text(step.bytes / step.messages),
                  percent_text(fill), time_text(each), ms, cycle),
      at_most_exposed(step, step.messages * each),
      {{"messages_per_step", step.messages}, {"fill", fill}}};
}

/// Whether the span reads samples, by the words in its name.
bool is_loading(const std::string& span) {
  static const std::regex words("\\b(data|load|loads|loading|loader|read|reads|reading|batch)\\b");
  static const std::regex training("train|forward|backward|step");
  std::string name = span;
  for (char& each : name) {
    each = each == '_' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
  }
  return std::regex_search(name, words) && !std::regex_search(name, training);
}

std::vector<Finding> slow_spans(const Profile& run, const StepMeans& step) {
  constexpr double kShareOfStep = 0.25;
  constexpr double kWholeStep = 0.9;  // such a span is around the step
  std::vector<Finding> found;
  if (step.time_us == 0) return found;
  for (const auto& [name, span] : run.merged.spans) {
    const double cost = run.a_step(total_us(span.time));
    if (cost < kShareOfStep * step.time_us || cost < step.exposed_us) continue;
    if (cost >= kWholeStep * step.time_us) continue;
    const bool loads = is_loading(name);
    const std::string rate = span.bytes > 0 ? " at " + rate_text(span) : "";
    found.push_back(
        {loads ? "loader" : "span",
         fmt::format("{}: span \"{}\" takes {} of a step ({}{}), exposed communication {}{}",
                     loads ? "the loader is the limit" : "the program itself is the limit", name,
                     percent_text(cost / step.time_us), time_text(cost), rate,
                     percent_text(step.exposed_share()),
                     loads ? "; give the loader more workers or faster storage" : ""),
         cost,
         {{"span", name}, {"share_of_step", cost / step.time_us}}});
  }
  return found;
}

Found registration(const Profile& run, const StepMeans& step) {
  const auto count = [&](const char* name) { return run.counter("cuda", name); };
  const double hits = count("registration_hits");
  const double misses = count("registration_misses");
  const double cost = run.a_step(count("registration_open_us"));
  constexpr double kShareOfStep = 0.02;
  if (run.merged.steps < kFewestSteps || misses < hits || cost < kShareOfStep * step.time_us)
    return {};
  if (misses == 0) return {};
  const bool room = count("registration_evicted_for_room") > misses / 2;
  return Finding{
      "registration",
      fmt::format("{} of GPU buffers were not in the registration cache: {}",
                  percent_text(misses / (hits + misses)),
                  room ? "raise RONDE_REGISTRATION_CACHE_BYTES"
                       : "keep buffers between steps, so that their addresses stay the same"),
      cost,
      {{"hits", hits}, {"misses", misses}}};
}

/// Finds waiting that the causes do not explain.
Found exposed(const Profile& run, const StepMeans& step, double explained) {
  constexpr double kShareOfStep = 0.1;
  const double cost = step.exposed_us - explained;
  if (step.backend_us == 0 || cost < kShareOfStep * step.time_us || step.time_us == 0) return {};
  const double share = std::min(1.0, step.exposed_us / step.backend_us);
  const Json figures = {{"share_of_communication", share}, {"share_of_step", step.exposed_share()}};
  if (step.exposed_us > 2 * step.backend_us) {
    return Finding{"exposed",
                   fmt::format("ranks wait {} of a step of {}, and communication takes only {}: "
                               "the rest is agreement, and waiting for each other in turns; look "
                               "for what differs between ranks in a timeline (RONDE_TIMELINE)",
                               time_text(step.exposed_us), time_text(step.time_us),
                               time_text(step.backend_us)),
                   cost, figures};
  }
  std::string text =
      fmt::format("{} of communication is exposed ({} of a step of {})", percent_text(share),
                  time_text(step.exposed_us), time_text(step.time_us));
  const auto buckets = static_cast<double>(run.merged.last_buckets);
  const double last_bytes = static_cast<double>(run.merged.last_bucket_bytes) / buckets;
  const double lead_us = us_of(run.merged.last_bucket_lead_ns) / buckets;
  const double fusion = run.fusion_bytes();
  const double rate = step.bytes / step.backend_us;
  // A last bucket that backward could not hide, and that can be split.
  const bool splits = buckets > 0 && last_bytes > 4 * kMiB && last_bytes / rate > lead_us &&
                      last_bytes > 0.1 * step.bytes && fusion != 0;
  if (buckets > 0) {
    text += fmt::format(": the last bucket holds {} and starts {} {} backward ends",
                        amount_text(last_bytes), time_text(std::abs(lead_us)),
                        lead_us < 0 ? "after" : "before");
  }
  if (splits) {
    const double half = power_of_two_below(last_bytes / 2);
    text += "; try RONDE_FUSION_BYTES=" + setting_text(half);
  } else if (step.backward_us > 0 && step.backend_us > step.backward_us) {
    text += fmt::format(
        "; communication takes {} a step and backward {}: send fewer bytes "
        "(wire_dtype), or try another backend",
        time_text(step.backend_us), time_text(step.backward_us));
  } else {
    text += "; submit gradients earlier, or send fewer bytes (wire_dtype)";
  }
  return Finding{"exposed", text, cost, figures};
}

}  // namespace

std::vector<Finding> find_all(const Profile& run) {
  const StepMeans step = step_means(run);
  std::vector<Finding> found = slow_spans(run, step);
  double explained = 0;
  for (const auto& cause : {slow_rank, waiting_ranks, changing_names, thaws, small_fusion,
                            empty_messages, registration}) {
    Found one = cause(run, step);
    if (!one) continue;
    explained = std::max(explained, one->cost_us);
    found.push_back(std::move(*one));
  }
  // The schedule cannot stay frozen with names that change.
  const auto has = [&](const char* kind) {
    return std::ranges::any_of(found, [&](const Finding& each) { return each.kind == kind; });
  };
  if (has("changing_names")) {
    std::erase_if(found, [](const Finding& each) { return each.kind == "thaws"; });
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &Finding::cost_us);
  if (Found rest = exposed(run, step, explained)) found.push_back(std::move(*rest));
  if (!run.failure.empty()) {
    found.insert(found.begin(), {"failure", "the run failed: " + run.failure, 0, {}});
  }
  return found;
}

}  // namespace ronde
