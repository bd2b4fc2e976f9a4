// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/read/figures.h"

#include <algorithm>
#include <cmath>

#include "ronde/error.h"

namespace ronde::prof {
namespace {

double number_in(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? 0 : found->get<double>();
}

/// The member, or an empty object.
const Json& object_in(const Json& json, const char* name) {
  static const Json nothing = Json::object();
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nothing : *found;
}

Dist parse_dist(const Json& json) {
  Dist dist;
  dist.count = number_in(json, "count");
  dist.total_us = number_in(json, "total_us");
  dist.p50_us = number_in(json, "p50_us");
  dist.p99_us = number_in(json, "p99_us");
  dist.max_us = number_in(json, "max_us");
  for (const Json& bin : object_in(json, "histogram")) {
    dist.histogram[bin.at(0).get<double>()] += bin.at(1).get<double>();
  }
  return dist;
}

double percentile(const Dist& dist, double share) {
  double count = 0;
  for (const auto& [up_to, in_bin] : dist.histogram) {
    count += in_bin;
    if (count >= share * dist.count) return std::min(up_to, dist.max_us);
  }
  return dist.max_us;
}

/// The numbers in a tree of objects, by the names of the outermost and the innermost.
void parse_counters(const Json& json, Figures& figures) {
  for (const auto& [part, values] : json.items()) {
    if (!values.is_object()) continue;
    for (const auto& [name, value] : values.items()) {
      if (value.is_number()) figures.counters[part][name] = value.get<double>();
    }
  }
}

void parse_steps(const Json& json, Figures& figures) {
  figures.steps = number_in(json, "count");
  figures.samples = number_in(json, "samples");
  figures.step_time = parse_dist(object_in(json, "time"));
  figures.exposed = parse_dist(object_in(json, "exposed"));
  figures.backward = parse_dist(object_in(json, "backward"));
  if (const Json& bucket = object_in(json, "last_bucket"); !bucket.empty()) {
    figures.last_bucket = LastBucket{number_in(bucket, "bytes"), number_in(bucket, "lead_us")};
  }
}

void parse_messages(const Json& json, const fs::path& path, Figures& figures) {
  for (const Json& each : json) {
    MessageClass message;
    message.up_to_bytes = each.at("up_to_bytes").get<double>();
    constexpr double kMost = 0x1p60;
    if (message.up_to_bytes < 1 || message.up_to_bytes > kMost) {
      throw UsageError(path.string() + " is damaged: it has messages of " +
                       each.at("up_to_bytes").dump() + " bytes");
    }
    message.count = number_in(each, "count");
    message.tensors = number_in(each, "tensors");
    message.bytes = number_in(each, "bytes");
    message.uncompressed_bytes = number_in(each, "uncompressed_bytes");
    for (std::size_t i = 0; i < kPhases; ++i) {
      message.phases[i] = parse_dist(object_in(object_in(each, "phases"), kPhaseNames[i]));
    }
    figures.messages[message.up_to_bytes] = message;
  }
}

}  // namespace

void Dist::add(const Dist& other) {
  if (other.count == 0) return;
  if (count == 0) {
    *this = other;
    return;
  }
  count += other.count;
  total_us += other.total_us;
  max_us = std::max(max_us, other.max_us);
  for (const auto& [up_to, in_bin] : other.histogram) histogram[up_to] += in_bin;
  if (histogram.empty()) {
    p50_us = std::max(p50_us, other.p50_us);
    p99_us = std::max(p99_us, other.p99_us);
  } else {
    p50_us = percentile(*this, 0.5);
    p99_us = percentile(*this, 0.99);
  }
}

Dist dist_of(std::vector<double> samples) {
  constexpr double kBinsPerOctave = 4;
  Dist dist;
  std::ranges::sort(samples);
  for (const double sample : samples) {
    dist.total_us += sample;
    const double octave = std::log2(std::max(sample, 1e-3));
    dist.histogram[std::exp2(std::ceil(octave * kBinsPerOctave) / kBinsPerOctave)] += 1;
  }
  if (samples.empty()) return dist;
  dist.count = static_cast<double>(samples.size());
  const auto at = [&](double share) {
    const double nearest = std::ceil(share * dist.count) - 1;
    return samples[static_cast<std::size_t>(std::max(nearest, 0.0))];
  };
  dist.p50_us = at(0.5);
  dist.p99_us = at(0.99);
  dist.max_us = samples.back();
  return dist;
}

double MessageClass::backend_us() const {
  return phases[kPack].total_us + phases[kCommunicate].total_us + phases[kUnpack].total_us;
}

void MessageClass::add(const MessageClass& other) {
  count += other.count;
  tensors += other.tensors;
  bytes += other.bytes;
  uncompressed_bytes += other.uncompressed_bytes;
  for (std::size_t i = 0; i < kPhases; ++i) phases[i].add(other.phases[i]);
}

double Figures::counter(const std::string& part, const std::string& name) const {
  double sum = 0;
  for (const auto& [key, values] : counters) {
    if (key != part && !key.starts_with(part + " of set ")) continue;
    if (const auto found = values.find(name); found != values.end()) sum += found->second;
  }
  return sum;
}

Figures parse_figures(const Json& json, const fs::path& path) {
  Figures figures;
  figures.rank = rank_of(json.value("rank", Json(-1)), path);
  figures.seconds = number_in(json, "seconds");
  parse_steps(object_in(json, "steps"), figures);
  parse_messages(object_in(json, "messages"), path, figures);
  const Json& operations = object_in(json, "operations");
  figures.operations = number_in(operations, "count");
  figures.gather = parse_dist(object_in(operations, "gather"));
  figures.wait = parse_dist(object_in(operations, "wait"));
  for (const Json& late : object_in(json, "last_ranks")) {
    figures.last_ranks[rank_of(late.at("rank"), path)] = {number_in(late, "count"),
                                                          number_in(late, "lost_us")};
  }
  for (const Json& span : object_in(json, "spans")) {
    figures.spans[span.at("name").get<std::string>()] = {
        number_in(span, "count"), number_in(span, "bytes"), parse_dist(object_in(span, "time"))};
  }
  figures.events_written = number_in(object_in(json, "events"), "written");
  figures.events_lost = number_in(object_in(json, "events"), "lost");
  parse_counters(object_in(json, "counters"), figures);
  return figures;
}

Figures merge_figures(const std::vector<Figures>& ranks) {
  Figures all;
  double buckets = 0;
  for (const Figures& each : ranks) {
    all.seconds = std::max(all.seconds, each.seconds);
    all.steps = std::max(all.steps, each.steps);
    all.samples += each.samples;
    all.step_time.add(each.step_time);
    all.exposed.add(each.exposed);
    all.backward.add(each.backward);
    if (each.last_bucket) {
      ++buckets;
      LastBucket& mean = all.last_bucket ? *all.last_bucket : all.last_bucket.emplace();
      mean.bytes += (each.last_bucket->bytes - mean.bytes) / buckets;
      mean.lead_us += (each.last_bucket->lead_us - mean.lead_us) / buckets;
    }
    for (const auto& [up_to, message] : each.messages) {
      all.messages[up_to].up_to_bytes = up_to;
      all.messages[up_to].add(message);
    }
    all.operations += each.operations;
    all.gather.add(each.gather);
    all.wait.add(each.wait);
    for (const auto& [rank, late] : each.last_ranks) {
      // Every rank counts the same messages, and waits for itself.
      all.last_ranks[rank].count = std::max(all.last_ranks[rank].count, late.count);
      all.last_ranks[rank].lost_us += late.lost_us;
    }
    for (const auto& [name, span] : each.spans) {
      all.spans[name].count += span.count;
      all.spans[name].bytes += span.bytes;
      all.spans[name].time.add(span.time);
    }
    all.events_written += each.events_written;
    all.events_lost += each.events_lost;
    for (const auto& [part, values] : each.counters) {
      for (const auto& [name, value] : values) all.counters[part][name] += value;
    }
  }
  return all;
}

}  // namespace ronde::prof
