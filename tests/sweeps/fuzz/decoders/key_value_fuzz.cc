// SPDX-License-Identifier: Apache-2.0
// What a rank finds in a key-value store that anybody may have written to.
#include "backends/socket/key_value.h"

#include "backends/socket/endpoint.h"
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

Corpus corpus() {
  Corpus corpus;
  corpus.rounds = 2'000;
  corpus.valid = {'\0' + facts(), "\1host", "\1another host", '\2' + endpoint()};
  for (const std::string& input : std::vector<std::string>(corpus.valid)) {
    const char exchange = static_cast<char>(input[0] | kAsText);
    corpus.valid.push_back(exchange + value_of(input.substr(1)));
  }
  return corpus;
}

}  // namespace ronde::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ronde::fuzz;
  if (size == 0) return 0;
  const std::string rest(text_of(data + 1, size - 1));
  std::vector<std::string> values = {value_of(facts()), value_of("host"), value_of(endpoint())};
  values[(data[0] & 3U) % kExchanges] = (data[0] & kAsText) != 0 ? rest : value_of(rest);
  try {
    start_with(values);
  } catch (const ronde::GroupError&) {
    ++accepted;
  } catch (const ronde::Error&) {
  }
  return 0;
}
