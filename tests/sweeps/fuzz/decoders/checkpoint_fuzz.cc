// SPDX-License-Identifier: Apache-2.0
// The files of a checkpoint, names of folders, and what ranks say of them.
#include "tests/checkpoint/parts.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde::fuzz {
namespace {

constexpr std::uint64_t kPartBytes = 1000;

/// Decodes, and requires that what is encoded again is read as the same.
template <typename Decode, typename Encode>
bool round_trip(std::string_view text, const Decode& decode, const Encode& encode) {
  try {
    const std::string written = encode(decode(text));
    require(encode(decode(written)) == written, "it is written so that it is read as the same");
    return true;
  } catch (const store::FormatError&) {
    return false;
  }
}

}  // namespace

std::vector<std::string> valid_inputs() {
  const test::TestCheckpoint made = test::make_checkpoint(7, 120, 3);
  const std::string manifest = store::encode_manifest(made.manifest);
  return {
      manifest, made.indices[0],
      store::encode_sightings(
          {{.name = made.manifest.name, .committed = true, .manifest = manifest, .parts = {0, 1}}}),
      store::folder_name(made.manifest.name)};
}

bool take(std::string_view bytes) {
  store::Name name;
  bool taken = store::parse_folder_name(bytes, name);
  require(!taken || store::folder_name(name) == bytes, "a name of a folder is unique");
  taken |= round_trip(bytes, store::decode_manifest, [](store::Manifest manifest) {
    manifest.version = store::kVersion;
    return store::encode_manifest(manifest);
  });
  taken |= round_trip(
      bytes, [](std::string_view text) { return store::decode_index(text, kPartBytes); },
      store::encode_index);
  taken |= round_trip(bytes, store::decode_sightings, store::encode_sightings);
  try {
    store::find_candidates({store::decode_sightings(bytes)}, {0});
  } catch (const store::FormatError&) {
  }
  return taken;
}

}  // namespace ronde::fuzz
