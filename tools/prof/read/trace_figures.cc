// SPDX-License-Identifier: Apache-2.0
// The figures of a profile from the slices of a timeline.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "tools/prof/read/trace.h"

namespace ronde::prof {
namespace {

struct Slice {
  double begin = 0;
  double end = 0;
};

/// The numbers of a process set and of a bucket in it.
using BucketKey = std::pair<double, double>;

BucketKey key_in(const Json& args) {
  return {args.value("set", 0.0), args.value("bucket", -1.0)};
}

struct Bucket {
  BucketKey key;
  Slice slice;
  double bytes = 0;
  double tensors = 0;
  std::map<std::string, double> parts;  ///< by the name of the nested slice
};

struct Tensor {
  double submitted = 0;
  double announced = 0;
  double agreed = 0;
  int last_rank = -1;  ///< of those who announced it
};

/// What is agreed for a bucket before it starts.
struct Agreement {
  double last_announced = 0;
  double agreed = 0;
  int last_rank = -1;
};

/// Collects the events of one rank.
class Collector {
 public:
  explicit Collector(fs::path path) : path_(std::move(path)) {}

  void take(const Json& event);
  Figures figures() const;

 private:
  void take_slice(const Json& event);
  void take_negotiation(const Json& event);
  void add_messages(Figures& figures) const;
  void add_steps(Figures& figures) const;
  void add_losses(Figures& figures) const;

  const fs::path path_;
  std::vector<Slice> steps_;
  std::vector<Slice> backward_;
  std::vector<Slice> waits_;
  std::vector<double> awaited_;  ///< operations, by wait
  std::vector<Bucket> buckets_;
  std::map<std::string, std::pair<double, std::vector<double>>> spans_;  ///< bytes and durations
  std::map<double, Tensor> tensors_;                                     ///< by operation number
  std::map<BucketKey, Agreement> agreements_;
  std::vector<double> gathers_;
  double samples_ = 0;
};

const Json& args_of(const Json& event) {
  static const Json nothing = Json::object();
  const auto found = event.find("args");
  return found == event.end() || !found->is_object() ? nothing : *found;
}

void Collector::take(const Json& event) {
  const std::string phase = event.value("ph", "");
  if (phase == "X") take_slice(event);
  if (phase == "b" || phase == "n" || phase == "e") take_negotiation(event);
}

void Collector::take_slice(const Json& event) {
  const double begin = event.at("ts").get<double>();
  const Slice slice{begin, begin + event.value("dur", 0.0)};
  const std::string name = event.value("name", "");
  const std::string category = event.value("cat", "");
  const Json& args = args_of(event);
  const int track = event.value("tid", 0);
  if (track == 1) {
    steps_.push_back(slice);
    samples_ += args.value("samples", 0.0);
  } else if (track == 2) {
    backward_.push_back(slice);
  } else if (is_bucket(event)) {
    buckets_.push_back(
        {key_in(args), slice, args.at("bytes").get<double>(), args.value("operations", 1.0), {}});
  } else if (category == "communication") {
    // A part of the bucket that was written before it.
    if (!buckets_.empty()) buckets_.back().parts[name] += slice.end - slice.begin;
  } else if (category == "wait") {
    waits_.push_back(slice);
    awaited_.push_back(args.value("operation", 0.0));
  } else if (category == "span") {
    spans_[name].first += args.value("bytes", 0.0);
    spans_[name].second.push_back(slice.end - slice.begin);
  }
}

void Collector::take_negotiation(const Json& event) {
  if (!event.contains("id")) return;
  Tensor& tensor = tensors_[event.at("id").get<double>()];
  const double now = event.at("ts").get<double>();
  const std::string name = event.value("name", "");
  if (event.at("ph") == "b") {
    tensor = {.submitted = now, .announced = now};
  } else if (name == "announced") {
    gathers_.push_back(now - tensor.submitted);
    tensor.announced = now;
  } else if (name == "agreed") {
    Agreement& agreement = agreements_[key_in(args_of(event))];
    agreement.last_announced = std::max(agreement.last_announced, tensor.announced);
    agreement.agreed = std::max(agreement.agreed, now);
    agreement.last_rank = rank_of(args_of(event).value("last_rank", Json(-1)), path_);
    tensor.agreed = now;
    tensor.last_rank = agreement.last_rank;
  }
}

void Collector::add_messages(Figures& figures) const {
  std::map<double, std::array<std::vector<double>, kPhases>> samples;
  for (const Bucket& bucket : buckets_) {
    constexpr double kFirstClass = 1024;
    const double up_to =
        std::max(kFirstClass, std::exp2(std::ceil(std::log2(std::max(bucket.bytes, 1.0)))));
    MessageClass& message = figures.messages[up_to];
    message.up_to_bytes = up_to;
    ++message.count;
    message.tensors += bucket.tensors;
    message.bytes += bucket.bytes;
    auto& of_class = samples[up_to];
    const double whole = bucket.slice.end - bucket.slice.begin;
    double rest = whole;
    for (const Phase phase : {kPack, kUnpack}) {
      const auto part = bucket.parts.find(kPhaseNames[phase]);
      if (part == bucket.parts.end()) continue;
      of_class[phase].push_back(part->second);
      rest -= part->second;
    }
    of_class[kCommunicate].push_back(std::max(0.0, rest));
    const auto found = agreements_.find(bucket.key);
    if (found == agreements_.end() || found->second.last_announced == 0) continue;
    const Agreement& agreement = found->second;
    const double waited = std::max(0.0, agreement.agreed - agreement.last_announced);
    of_class[kNegotiate].push_back(waited);
    of_class[kQueue].push_back(std::max(0.0, bucket.slice.begin - agreement.agreed));
    if (agreement.last_rank >= 0) ++figures.last_ranks[agreement.last_rank].count;
  }
  for (auto& [up_to, phases] : samples) {
    for (std::size_t i = 0; i < kPhases; ++i) {
      figures.messages[up_to].phases[i] = dist_of(std::move(phases[i]));
    }
  }
}

/// The times that any of `slices` covers, in order and apart.
std::vector<Slice> united(std::vector<Slice> slices) {
  std::vector<Slice> apart;
  std::ranges::sort(slices, {}, &Slice::begin);
  for (const Slice& slice : slices) {
    if (apart.empty() || slice.begin > apart.back().end) {
      apart.push_back(slice);
    } else {
      apart.back().end = std::max(apart.back().end, slice.end);
    }
  }
  return apart;
}

/// How much of [begin, end) the slices cover, which are in order and apart.
double covered(const std::vector<Slice>& slices, const Slice& by) {
  double sum = 0;
  for (auto slice = std::ranges::lower_bound(slices, by.begin, {}, &Slice::end);
       slice != slices.end() && slice->begin < by.end; ++slice) {
    sum += std::min(slice->end, by.end) - std::max(slice->begin, by.begin);
  }
  return sum;
}

/// What waits cost of the time in steps, or of the whole run where there are none, until every rank
/// had submitted the operation. Waits that overlap count once.
void Collector::add_losses(Figures& figures) const {
  std::vector<std::pair<Slice, int>> losses;  // and the rank that was late
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    const auto found = tensors_.find(awaited_[i]);
    if (found == tensors_.end()) continue;
    losses.emplace_back(Slice{waits_[i].begin, std::min(waits_[i].end, found->second.agreed)},
                        found->second.last_rank);
  }
  // Backwards: what overlaps with earlier ones of these is their end.
  std::ranges::sort(losses, std::greater(), [](const auto& each) { return each.first.end; });
  double counted_from = std::numeric_limits<double>::infinity();
  for (auto& [lost, late_rank] : losses) {
    lost.end = std::min(lost.end, counted_from);
    if (lost.end <= lost.begin) continue;
    counted_from = lost.begin;
    figures.last_ranks[late_rank].lost_us +=
        steps_.empty() ? lost.end - lost.begin : covered(steps_, lost);
  }
}

void Collector::add_steps(Figures& figures) const {
  const std::vector<Slice> waits = united(waits_);
  std::vector<std::pair<double, double>> buckets;  // begin and bytes
  for (const Bucket& bucket : buckets_) buckets.emplace_back(bucket.slice.begin, bucket.bytes);
  std::ranges::sort(buckets);
  std::vector<double> times;
  std::vector<double> exposed;
  LastBucket last;
  double with_last = 0;
  for (const Slice& step : steps_) {
    times.push_back(step.end - step.begin);
    exposed.push_back(covered(waits, step));
    const auto backward = std::ranges::lower_bound(backward_, step.begin, {}, &Slice::begin);
    const auto behind = std::ranges::lower_bound(buckets, std::pair(step.end, 0.0));
    if (backward == backward_.end() || backward->begin >= step.end) continue;
    if (behind == buckets.begin() || std::prev(behind)->first < step.begin) continue;
    const auto& [begin, bytes] = *std::prev(behind);
    ++with_last;
    last.bytes += (bytes - last.bytes) / with_last;
    last.lead_us += (backward->end - begin - last.lead_us) / with_last;
  }
  figures.steps = static_cast<double>(steps_.size());
  figures.step_time = dist_of(std::move(times));
  figures.exposed = dist_of(std::move(exposed));
  if (with_last > 0) figures.last_bucket = last;
}

Figures Collector::figures() const {
  const auto durations = [](const std::vector<Slice>& slices) {
    std::vector<double> all;
    for (const Slice& slice : slices) all.push_back(slice.end - slice.begin);
    return dist_of(std::move(all));
  };
  Figures figures;
  figures.samples = samples_;
  add_steps(figures);
  figures.backward = durations(backward_);
  add_messages(figures);
  add_losses(figures);
  figures.operations = static_cast<double>(tensors_.size());
  figures.gather = dist_of(gathers_);
  figures.wait = durations(waits_);
  for (const auto& [name, span] : spans_) {
    figures.spans[name] = {static_cast<double>(span.second.size()), span.first,
                           dist_of(span.second)};
  }
  return figures;
}

}  // namespace

Figures trace_figures(const fs::path& path, TraceHead& head) {
  Collector collector(path);
  double first = 0;
  double last = 0;
  head = read_trace(path, [&](Json& event) {
    collector.take(event);
    const double at = event.value("ts", 0.0);
    if (at <= 0) return;
    if (first <= 0 || at < first) first = at;
    last = std::max(last, at + event.value("dur", 0.0));
  });
  Figures figures = collector.figures();
  figures.rank = head.rank;
  figures.seconds = (last - first) / 1e6;
  figures.events_lost = head.events_lost;
  return figures;
}

}  // namespace ronde::prof
