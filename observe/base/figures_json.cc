// SPDX-License-Identifier: Apache-2.0
#include "observe/base/figures_json.h"

#include <bit>
#include <cmath>
#include <string>

#include "ronde/error.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerUs = 1e3;

constexpr double kMostOfOne = 0x1p56;       // two years
constexpr double kMostOfAll = 0x1.0001p62;  // above Distribution::total_ns()

/// Throws Error for a time that no run can have.
std::int64_t whole_ns(double ns, double most = kMostOfOne) {
  if (std::abs(ns) <= most) return std::llround(ns);
  throw Error("it has a time of " + std::to_string(ns / kNsPerUs) + " us");
}

std::int64_t ns_of(const Json& us) {
  return whole_ns(us.get<double>() * kNsPerUs);
}

Json to_json(const Distribution& distribution, Histograms histograms) {
  Json json = {{"count", distribution.count()},
               {"total_us", us_of(distribution.total_ns())},
               {"p50_us", us_of(distribution.quantile_ns(0.5))},
               {"p99_us", us_of(distribution.quantile_ns(0.99))},
               {"max_us", us_of(distribution.largest_ns())}};
  if (histograms == Histograms::Without) return json;
  Json& bins = json["histogram"] = Json::array();
  for (const auto& [edge_ns, count] : distribution.bins()) {
    bins.push_back({us_of(edge_ns), count});
  }
  return json;
}

Distribution distribution_from(const Json& json) {
  std::vector<std::pair<std::int64_t, std::uint64_t>> bins;
  for (const Json& bin : json.value("histogram", Json::array())) {
    bins.emplace_back(ns_of(bin.at(0)), count_from_json(bin.at(1)));
  }
  // Operations that wait at the same time add up to more than the run took.
  const std::int64_t total = whole_ns(json.at("total_us").get<double>() * kNsPerUs, kMostOfAll);
  return Distribution::from(total, ns_of(json.at("max_us")), bins);
}

Json to_json(int exponent, const MessageFigures& figures, Histograms histograms) {
  Json phases = Json::object();
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    const Distribution& phase = figures.phases[i];
    if (phase.count() > 0)
      phases[std::string(to_string(static_cast<Phase>(i)))] = to_json(phase, histograms);
  }
  return {{"up_to_bytes", std::uint64_t{1} << exponent},
          {"count", figures.count},
          {"tensors", figures.tensors},
          {"bytes", figures.bytes},
          {"uncompressed_bytes", figures.uncompressed_bytes},
          {"phases", std::move(phases)}};
}

MessageFigures message_from(const Json& json) {
  MessageFigures figures;
  figures.count = count_from_json(json.at("count"));
  figures.tensors = count_from_json(json.at("tensors"));
  figures.bytes = count_from_json(json.at("bytes"));
  figures.uncompressed_bytes = count_from_json(json.at("uncompressed_bytes"));
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    const auto phase = json.at("phases").find(to_string(static_cast<Phase>(i)));
    if (phase != json.at("phases").end()) figures.phases[i] = distribution_from(*phase);
  }
  return figures;
}

Json steps_json(const Figures& figures, Histograms histograms) {
  Json steps = {{"count", figures.steps},
                {"samples", figures.samples},
                {"timed_samples", figures.timed_samples},
                {"time", to_json(figures.step_time, histograms)},
                {"exposed", to_json(figures.exposed, histograms)}};
  if (figures.backward.count() > 0) steps["backward"] = to_json(figures.backward, histograms);
  if (figures.last_buckets > 0) {
    const auto count = static_cast<double>(figures.last_buckets);
    steps["last_bucket"] = {{"count", figures.last_buckets},
                            {"bytes", static_cast<double>(figures.last_bucket_bytes) / count},
                            {"lead_us", us_of(figures.last_bucket_lead_ns) / count}};
  }
  return steps;
}

void read_steps(const Json& json, Figures& figures) {
  figures.steps = count_from_json(json.at("count"));
  figures.samples = count_from_json(json.at("samples"));
  figures.timed_samples = count_from_json(json.value("timed_samples", Json(0U)));
  figures.step_time = distribution_from(json.at("time"));
  figures.exposed = distribution_from(json.at("exposed"));
  if (json.contains("backward")) figures.backward = distribution_from(json.at("backward"));
  if (!json.contains("last_bucket")) return;
  const Json& last = json.at("last_bucket");
  figures.last_buckets = count_from_json(last.at("count"));
  const auto count = static_cast<double>(figures.last_buckets);
  figures.last_bucket_bytes =
      static_cast<std::uint64_t>(whole_ns(last.at("bytes").get<double>() * count, kMostOfAll));
  figures.last_bucket_lead_ns = whole_ns(last.at("lead_us").get<double>() * kNsPerUs * count);
}

}  // namespace

std::uint64_t count_from_json(const Json& json) {
  if (json.is_number_unsigned()) return json.get<std::uint64_t>();
  throw Error("it has " + json.dump() + " in place of a count");
}

int rank_from_json(const Json& json) {
  constexpr int kMost = 1'000'000;
  const bool is_huge = json.is_number_unsigned() && json.get<std::uint64_t>() > kMost;
  if (json.is_number_integer() && !is_huge && json >= -1 && json <= kMost) return json.get<int>();
  throw Error("it has rank " + json.dump());
}

Json series_json(const std::map<std::string, Series>& all) {
  Json json = Json::object();
  for (const auto& [name, series] : all) json[name] = series.points;
  return json;
}

std::map<std::string, Series> series_from_json(const Json& json) {
  std::map<std::string, Series> all;
  for (const auto& [name, points] : json.items()) {
    Series& series = all[name];
    if (points.empty()) throw Error("it has a series without a point");
    double last = 0;
    for (const Json& point : points) {
      const double seconds = point.at(0).get<double>();
      // JSON has null in place of NaN and the infinities.
      const double value = point.at(1).is_null() ? std::nan("") : point.at(1).get<double>();
      if (point.size() != 2 || seconds < last) {
        throw Error("it has the point " + point.dump() + " behind one of " + std::to_string(last) +
                    " s: points are [seconds, number], ascending");
      }
      series.points.emplace_back(last = seconds, value);
      ++series.count;
    }
  }
  return all;
}

Json counters_json(const Stats& stats) {
  Json json = Json::object();
  for (const StatsGroup& group : stats) {
    Json& part = json[group.part] = Json::object();
    for (const auto& [counter, value] : group.counters) part[counter] = value;
  }
  return json;
}

Json to_json(const Figures& figures, int rank, Histograms histograms) {
  Json json = {
      {"rank", rank}, {"seconds", figures.seconds}, {"steps", steps_json(figures, histograms)}};
  Json& messages = json["messages"] = Json::array();
  for (const auto& [exponent, message] : figures.messages) {
    messages.push_back(to_json(exponent, message, histograms));
  }
  json["operations"] = {{"count", figures.operations},
                        {"gather", to_json(figures.gather, histograms)},
                        {"wait", to_json(figures.wait, histograms)}};
  Json& lasts = json["last_ranks"] = Json::array();
  for (const auto& [last_rank, last] : figures.last_ranks) {
    lasts.push_back({{"rank", last_rank}, {"count", last.count}, {"lost_us", us_of(last.lost_ns)}});
  }
  Json& spans = json["spans"] = Json::array();
  for (const auto& [name, span] : figures.spans) {
    spans.push_back({{"name", name},
                     {"count", span.time.count()},
                     {"bytes", span.bytes},
                     {"time", to_json(span.time, histograms)}});
  }
  std::map<std::string, Series> series = figures.series;
  if (histograms == Histograms::Without) {
    for (auto& [name, one] : series) one.points = {one.points.back()};
  }
  json["series"] = series_json(series);
  json["peak_bytes"] = figures.peak_bytes;
  json["thaws"] = figures.thaws;
  json["events"] = {{"written", figures.events}, {"lost", figures.lost_events}};
  json["counters"] = counters_json(figures.counters);
  return json;
}

Figures figures_from_json(const Json& json) {
  Figures figures;
  figures.seconds = json.at("seconds");
  read_steps(json.at("steps"), figures);
  for (const Json& message : json.at("messages")) {
    const std::uint64_t bytes = count_from_json(message.at("up_to_bytes"));
    if (!std::has_single_bit(bytes)) {
      throw Error("it has messages of up to " + std::to_string(bytes) + " bytes");
    }
    figures.messages[static_cast<int>(std::bit_width(bytes)) - 1] = message_from(message);
  }
  figures.operations = count_from_json(json.at("operations").at("count"));
  figures.gather = distribution_from(json.at("operations").at("gather"));
  figures.wait = distribution_from(json.at("operations").at("wait"));
  for (const Json& last : json.at("last_ranks")) {
    figures.last_ranks[rank_from_json(last.at("rank"))] = {count_from_json(last.at("count")),
                                                           ns_of(last.at("lost_us"))};
  }
  for (const Json& span : json.at("spans")) {
    figures.spans[span.at("name")] = {count_from_json(span.at("bytes")),
                                      distribution_from(span.at("time"))};
  }
  figures.series = series_from_json(json.value("series", Json::object()));
  figures.peak_bytes = count_from_json(json.value("peak_bytes", Json(0U)));
  for (const auto& [reason, count] : json.at("thaws").items()) {
    figures.thaws[reason] = count_from_json(count);
  }
  figures.events = count_from_json(json.at("events").at("written"));
  figures.lost_events = count_from_json(json.at("events").at("lost"));
  for (const auto& [part, counters] : json.at("counters").items()) {
    StatsGroup& group = figures.counters.emplace_back();
    group.part = part;
    for (const auto& [name, value] : counters.items())
      group.counters.emplace_back(name, count_from_json(value));
  }
  return figures;
}

}  // namespace ronde
