#pragma once

#include <cstdint>

namespace lamina::h2m2 {

// A dense decoder as the board sees it.
struct Shape {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int intermediate = 0;
  int ff_matrices = 2;  // 3 where the feed-forward layer is gated
  int vocab = 0;        // 0 leaves the LM head out, as the paper does
  int element_bytes = 1;

  int group() const { return heads / kv_heads; }
};

// What one iteration has to do: its requests, the KV tokens they read (with the new one), and how often the
// matrix-vector units' rows are filled with these, request by request.
struct Moment {
  std::int64_t batch = 0;
  std::int64_t kv_tokens = 0;
  std::int64_t kv_rows = 0;  // sum of ceil(tokens / mv_rows)
};

// Bytes that one head (attention: one KV group) takes over all layers, wherever it is.
struct Footprint {
  double qkv = 0;
  double attention = 0;
  double fc = 0;  // with its share of the LM head
};

// What a mapping has to fit in.
struct Room {
  double hbm_bytes = 0;
  double lpddr_bytes = 0;
  Footprint unit;
};

// Which sublayers' heads are on the HBM side; of attention, whole KV groups. The others are on the LPDDR
// side. With whole_layers these are numbers of layers instead: a layer's sublayer is then on one side
// altogether.
struct Mapping {
  int qkv = 0;
  int attention = 0;
  int fc = 0;
  bool whole_layers = false;

  bool operator==(const Mapping&) const = default;
};

}  // namespace lamina::h2m2
