// SPDX-License-Identifier: Apache-2.0
// What a rank finds in a key-value store that anybody may have written to.
#include "backends/socket/key_value.h"

#include "backends/socket/rendezvous.h"
#include "core/src/base/fields.h"
#include "core/src/base/system.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

// An input is a byte, which says whose place the rest takes, and the rest. Rank 1 of 2 reads three
// values of rank 0: the facts, its host and its endpoint.
constexpr unsigned kExchanges = 3;
constexpr char kAsText = 4;  // the rest is the value itself, not what the value stands for

std::string value_of(std::string_view bytes) {
  return "ronde1:" + to_hex(bytes);
}

std::string facts() {
  return pack_fields({"2", "0", "host"});
}

std::string endpoint() {
  return net::pack_endpoint(
      {"name", 0, {}, std::string(net::kTokenBytes, 'h'), std::string(net::kTokenBytes, 'r')});
}

/// Rank 1 starts, and has no time to visit rank 0 once it has read these values.
void start_with(const std::vector<std::string>& values) {
  KeyValueOptions options;
  options.init_timeout_s = 0;
  options.host = "host";
  options.one_host = false;
  options.start.rank = 1;
  options.start.size = 2;
  options.start.prefix = "p";
  options.start.put = [](const std::string&, const std::string&) {};
  options.start.get = [&](const std::string& key) -> std::optional<std::string> {
    return values.at(static_cast<std::size_t>(key.at(2) - '0'));  // "p/0/0"
  };
  key_value_transport_factory(options)();
  require(false, "nobody can be reached");
}

}  // namespace

std::vector<std::string> valid_inputs() {
  std::vector<std::string> inputs = {'\0' + facts(), "\1host", "\1another host", '\2' + endpoint()};
  for (std::size_t i = 0; i < 4; ++i) {
    const char exchange = static_cast<char>(inputs[i][0] | kAsText);
    inputs.push_back(exchange + value_of(inputs[i].substr(1)));
  }
  return inputs;
}

bool take(std::string_view bytes) {
  if (bytes.empty()) return false;
  const std::string rest(bytes.substr(1));
  const auto place = static_cast<unsigned char>(bytes[0]);
  std::vector<std::string> values = {value_of(facts()), value_of("host"), value_of(endpoint())};
  values[(place & 3U) % kExchanges] = (place & kAsText) != 0 ? rest : value_of(rest);
  try {
    start_with(values);
  } catch (const GroupError&) {
    return true;
  } catch (const Error&) {
  }
  return false;
}

}  // namespace ronde::fuzz
