// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ronde {
namespace {

/// What a network sends at once: less does not share a link.
constexpr double kPacketBytes = 1500;

/// Returns the largest message that takes no longer on a link than the gap, or is a packet.
double small_bytes_of(const NetworkCosts& costs) {
  if (costs.gap_per_byte <= 0) return std::numeric_limits<double>::infinity();
  return std::max(kPacketBytes, costs.gap / costs.gap_per_byte);
}

}  // namespace

SimulatedNetwork::SimulatedNetwork(EventQueue& events, const SimulationOptions& options)
    : events_(events),
      options_(options),
      bytes_per_ns_(1e-9 / options.network.gap_per_byte),
      small_bytes_(small_bytes_of(options.network)),
      gap_(from_s(options.network.gap)),
      latency_(from_s(options.network.latency)) {
  std::size_t hosts = 0;
  for (const int host : options.host_of) {
    ranks_.push_back({.host = static_cast<std::size_t>(host)});
    hosts = std::max(hosts, ranks_.back().host + 1);
  }
  out_.resize(hosts);
  in_.resize(hosts);
}

TimePoint SimulatedNetwork::time(int rank) const noexcept {
  return std::max(events_.now(), of(rank).busy_until);
}

void SimulatedNetwork::charge(int rank, Duration duration) noexcept {
  of(rank).busy_until = time(rank) + duration;
  of(rank).charged += duration;
}

Duration SimulatedNetwork::charged(int rank) const noexcept {
  return of(rank).charged;
}

void SimulatedNetwork::at(TimePoint time, int rank, Action action) {
  events_.at(time,
             [this, rank, action = std::move(action)]() mutable { act(rank, std::move(action)); });
}

void SimulatedNetwork::act(int rank, Action action) {
  if (of(rank).life == Life::Runs) {
    action();
  } else if (of(rank).life == Life::Stopped) {
    of(rank).held.push_back(std::move(action));
  }
}

void SimulatedNetwork::cut(int rank) {
  Rank& dead = of(rank);
  dead.life = Life::Dead;
  dead.held.clear();
  remove_flows(static_cast<Index>(dead.host),
               [&](const Flow& flow) { return messages_[flow.message].from == rank; });
  for (const Flow& flow : ended_) drop(flow.message);
}

void SimulatedNetwork::stop(int rank) noexcept {
  if (of(rank).life == Life::Runs) of(rank).life = Life::Stopped;
}

void SimulatedNetwork::go_on(int rank) {
  if (of(rank).life != Life::Stopped) return;
  of(rank).life = Life::Runs;
  for (Action& action : std::exchange(of(rank).held, {}))
    at(events_.now(), rank, std::move(action));
}

void SimulatedNetwork::send(int from, int to, std::uint64_t bytes, bool is_control,
                            TimePoint posted, Action left, Action arrived) {
  Index index = 0;
  if (unused_.empty()) {
    index = static_cast<Index>(messages_.size());
    messages_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  messages_[index] = {from, to, bytes, is_control, posted, std::move(left), std::move(arrived)};
  // An event also where it is due, as the caller expects no call before this one returns.
  events_.at(posted, [this, index] { enter(index); });
}

/// Sends a message within its host, or has it begin g after the last one of the host.
void SimulatedNetwork::enter(Index index) {
  const Message& message = messages_[index];
  const Rank& sender = of(message.from);
  if (sender.life == Life::Dead) return drop(index);
  if (sender.host == of(message.to).host) {
    const HostCosts& costs = options_.host;
    const auto bytes = static_cast<double>(message.is_control ? 0 : message.bytes);
    return leave(index, from_s(costs.message_latency + bytes * costs.bytes_shared));
  }
  TimePoint& next = out_[sender.host].next_begin;
  const TimePoint begins = std::max(next, events_.now());
  next = begins + gap_;
  if (begins == events_.now()) return begin(index);
  events_.at(begins, [this, index] { begin(index); });
}

void SimulatedNetwork::begin(Index index) {
  const Message& message = messages_[index];
  if (of(message.from).life == Life::Dead) return drop(index);
  const auto bytes = static_cast<double>(message.bytes);
  if (bytes <= small_bytes_) {
    return leave(index, from_s(bytes * options_.network.gap_per_byte) + latency_);
  }
  const auto link_out = static_cast<Index>(of(message.from).host);
  const auto link_in = static_cast<Index>(of(message.to).host);
  out_[link_out].flows.push_back({index, link_in, bytes, 0, events_.now()});
  LinkIn& in = in_[link_in];
  ++in.flows;
  const auto source = std::ranges::find(in.sources, link_out, &Source::link_out);
  if (source == in.sources.end()) {
    in.sources.push_back({link_out, 1});
  } else {
    ++source->flows;
  }
  share(link_out);
  share_in(link_in, link_out);
}

/// Gives every flow of a link out its rate, after their number has changed.
void SimulatedNetwork::share(Index link_out) {
  for (Flow& flow : out_[link_out].flows) set_rate(flow, out_[link_out].flows.size());
  await_end(link_out);
}

/// As share(), for a link in, but for the flows of the link out `shared`.
void SimulatedNetwork::share_in(Index link_in, Index shared) {
  for (const Source& source : in_[link_in].sources) {
    if (source.link_out == shared) continue;
    std::vector<Flow>& flows = out_[source.link_out].flows;
    for (Flow& flow : flows) {
      if (flow.link_in == link_in) set_rate(flow, flows.size());
    }
    await_end(source.link_out);
  }
}

/// `flows`: on its link out.
void SimulatedNetwork::set_rate(Flow& flow, std::size_t flows) const {
  const std::size_t most = std::max<std::size_t>(flows, in_[flow.link_in].flows);
  const double rate = bytes_per_ns_ / static_cast<double>(most);
  if (rate == flow.rate) return;
  flow.bytes -= flow.rate * static_cast<double>((events_.now() - flow.since).count());
  flow.since = events_.now();
  flow.rate = rate;
}

TimePoint SimulatedNetwork::end_of(const Flow& flow) {
  // Rounding errors are far below a thousandth of a nanosecond.
  const double left = std::ceil(std::max(flow.bytes / flow.rate - 1e-3, 0.0));
  return flow.since + Duration(static_cast<Duration::rep>(left));
}

/// Has the end of the first flow looked at. If that has become later, the event of before stays,
/// and comes back here.
void SimulatedNetwork::await_end(Index link_out) {
  LinkOut& out = out_[link_out];
  TimePoint end = TimePoint::max();
  for (const Flow& flow : out.flows) end = std::min(end, end_of(flow));
  if (end >= out.next_end) return;
  out.next_end = end;
  events_.at(end, [this, link_out] {
    if (out_[link_out].next_end == events_.now()) end_flows(link_out);
  });
}

void SimulatedNetwork::end_flows(Index link_out) {
  out_[link_out].next_end = TimePoint::max();
  remove_flows(link_out, [this](const Flow& flow) { return end_of(flow) <= events_.now(); });
  for (const Flow& flow : ended_) leave(flow.message, latency_);
}

/// Moves the flows that are over to ended_.
template <typename IsOver>
void SimulatedNetwork::remove_flows(Index link_out, IsOver is_over) {
  ended_.clear();
  std::erase_if(out_[link_out].flows, [&](const Flow& flow) {
    if (!is_over(flow)) return false;
    ended_.push_back(flow);
    return true;
  });
  for (const Flow& flow : ended_) {
    LinkIn& in = in_[flow.link_in];
    --in.flows;
    const auto source = std::ranges::find(in.sources, link_out, &Source::link_out);
    if (--source->flows == 0) in.sources.erase(source);
  }
  share(link_out);
  Index shared = std::numeric_limits<Index>::max();
  for (const Flow& flow : ended_) {
    if (flow.link_in != shared) share_in(flow.link_in, link_out);
    shared = flow.link_in;
  }
}

/// The bytes of a message are on their way.
void SimulatedNetwork::leave(Index index, Duration until_arrival) {
  events_.at(events_.now() + until_arrival, [this, index] { arrive(index); });
  Message& message = messages_[index];
  if (message.left) act(message.from, std::exchange(message.left, nullptr));
}

void SimulatedNetwork::arrive(Index index) {
  const int to = messages_[index].to;
  if (of(to).life == Life::Dead) return drop(index);
  if (of(to).life == Life::Stopped) return of(to).held.push_back([this, index] { arrive(index); });
  const Message message = std::move(messages_[index]);
  drop(index);
  const bool is_reported = message.is_control || of(message.from).host != of(to).host;
  if (is_reported && options_.on_message) {
    options_.on_message({message.from, to, message.bytes, message.is_control,
                         message.posted.time_since_epoch(), events_.now().time_since_epoch()});
  }
  if (message.arrived) message.arrived();
}

void SimulatedNetwork::drop(Index index) {
  messages_[index] = {};
  unused_.push_back(index);
}

}  // namespace ronde
