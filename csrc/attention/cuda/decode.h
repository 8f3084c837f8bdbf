#ifndef LAMINA_ATTENTION_CUDA_DECODE_H
#define LAMINA_ATTENTION_CUDA_DECODE_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/library.h"

// Decode attention on an NVIDIA GPU (sm_80 and newer): one new token a request, its previous tokens found by
// index lists in a KV arena whose unit is the token.
//
// Once a step: plan. Then for each layer: begin when the queries are there, finish when the new keys and
// values are. Every call puts work on a stream and returns; none allocates device memory or waits for the
// device, so all can be captured in a graph. What a call is given as pointers to device memory is read when
// the work runs: a graph replayed later attends to whatever lists and lengths lie there by then, up to the
// captured batch. A request with an empty list fills a batch up; it costs nothing and its results are zero.
//
// Pointers are to device memory and aligned to 16 bytes, except where noted. Tensors are dense.

#if defined(__cplusplus)
extern "C" {
#endif

typedef enum { LAMINA_CUDA_F32 = 0, LAMINA_CUDA_F16 = 1, LAMINA_CUDA_BF16 = 2 } lamina_cuda_dtype;

// Which tokens of its list a request attends to.
typedef enum {
  LAMINA_CUDA_PREVIOUS = 0,  // all but the newest, which the list ends with: what begin() is for
  LAMINA_CUDA_ALL = 1        // the newest too, its key and value being in the arena: what partial() is for
} lamina_cuda_which;

typedef struct {
  int32_t dtype;  // lamina_cuda_dtype of q, K, V and of what finish() makes
  int32_t heads;
  int32_t kv_heads;  // divides heads
  int32_t head_dim;  // 16 to 256, a multiple of 16; with `latent` to 576
  float scale;       // of q.k
  float soft_cap;    // s becomes cap * tanh(s / cap); 0: none
  // A value is its key's first so many numbers, and stored once with it, as MLA does: 16 to 512, a multiple
  // of 16. V of the arena and of the calls is then not looked at. 0: values are apart, as wide as keys.
  int32_t latent;
  // Shares of the work for each block that the device runs at once, to 16; 0: one, for a kernel that has the
  // device to itself. If other kernels run, some blocks start late, and then delay small shares only.
  int32_t shares;
} lamina_cuda_attention;

// Strides in elements, multiples of 16 bytes; a head's elements lie side by side.
typedef struct {
  void* k;
  void* v;
  int64_t slot_stride;
  int64_t head_stride;
} lamina_cuda_arena;

// Request r has slots[offsets[r]] to slots[offsets[r + 1] - 1], the newest token last. Aligned to 4 bytes.
typedef struct {
  const int32_t* offsets;  // [batch + 1]
  const int32_t* slots;
  int32_t batch;
} lamina_cuda_lists;

// Attention over some tokens: normalised, with the natural logarithm of the softmax's denominator.
typedef struct {
  float* out;  // [batch][heads][value_dim, which is latent or head_dim]; 0 where there is no token
  float* lse;  // [batch][heads]; -infinity where there is no token
} lamina_cuda_partial;

// Where the work plan lives, and the parts of requests that several blocks share. It belongs to one batch
// size, one window and one stream at a time.
typedef struct {
  void* memory;  // aligned to 256 bytes
  size_t bytes;
} lamina_cuda_workspace;

// How large a workspace must be on the current device.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_workspace_bytes(const lamina_cuda_attention* attention,
                                                               int32_t batch, size_t* bytes);

// Shares the tokens that a window lets the batch see among the device's multiprocessors. Window w: a token
// sees w tokens, itself included; chunk c: those of its own chunk of c; 0: all. Layers with the same window
// and `which` share a plan.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_plan(const lamina_cuda_attention* attention,
                                                    const lamina_cuda_lists* lists, int32_t window,
                                                    int32_t chunk, int32_t which,
                                                    const lamina_cuda_workspace* workspace,
                                                    lamina_cuda_stream stream);

// Attention of q [batch][heads][head_dim] over the planned tokens.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_begin(const lamina_cuda_attention* attention,
                                                     const lamina_cuda_arena* arena,
                                                     const lamina_cuda_lists* lists, const void* q,
                                                     const lamina_cuda_workspace* workspace,
                                                     const lamina_cuda_partial* partial,
                                                     lamina_cuda_stream stream);

// Stores the newest tokens' k and v [batch][kv_heads][head_dim] in their slots, and makes `out`
// [batch][heads][value_dim] of the partial over the previous tokens and of them. `sinks` [heads], or null: of
// each head a score that counts in the softmax's denominator and has no value.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_finish(const lamina_cuda_attention* attention,
                                                      const lamina_cuda_arena* arena,
                                                      const lamina_cuda_lists* lists, const void* q,
                                                      const void* k, const void* v, const float* sinks,
                                                      const lamina_cuda_partial* partial, void* out,
                                                      lamina_cuda_stream stream);

// plan() for all tokens and attention over them, in one call. The workspace must not be one that a later
// begin() needs.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_partial_of(
    const lamina_cuda_attention* attention, const lamina_cuda_arena* arena, const lamina_cuda_lists* lists,
    int32_t window, int32_t chunk, const void* q, const lamina_cuda_workspace* workspace,
    const lamina_cuda_partial* partial, lamina_cuda_stream stream);

// Attention over the union of two disjoint sets of tokens, from that over each. `result` may be one of the
// two.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_combine(const lamina_cuda_attention* attention, int32_t batch,
                                                       const lamina_cuda_partial* first,
                                                       const lamina_cuda_partial* second,
                                                       const lamina_cuda_partial* result,
                                                       lamina_cuda_stream stream);

// Stores k and v [tokens][kv_heads][head_dim] in these slots; a negative slot is left out.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_append(const lamina_cuda_attention* attention,
                                                      const lamina_cuda_arena* arena, const void* k,
                                                      const void* v, const int32_t* slots, int64_t tokens,
                                                      lamina_cuda_stream stream);

// Memory that the driver moves between host and device page by page, so that there may be more of it than the
// device has. To be freed by free_managed().
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_allocate_managed(size_t bytes, void** memory);
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_free_managed(void* memory);

#if defined(__cplusplus)
}
#endif

#endif
