#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>

// The part of libibverbs' binary interface that a channel uses. The library is loaded at run time, so that
// nothing needs it to be built; where its headers are installed, a test holds this against them.
namespace lamina::fhbn::rdma::abi {

struct Device;
struct Context;
struct CompletionQueue;
struct QueuePair;

union Gid {
  std::uint8_t raw[16];
  std::uint64_t words[2];  // for the alignment
};

enum : std::uint32_t {
  kGidRoceV2 = 2,
  kPortActive = 4,
  kLinkLayerEthernet = 2,
  kRouteRequired = 1,  // among a port's flags: nothing goes without GIDs
};

struct GidEntry {
  Gid gid;
  std::uint32_t index;
  std::uint32_t port;
  std::uint32_t type;
  std::uint32_t interface;
};

// As far as the library's function fills it in; newer headers have more, for functions of theirs.
struct PortAttributes {
  std::uint32_t state;
  std::uint32_t max_mtu;
  std::uint32_t active_mtu;
  int gids;
  std::uint32_t capabilities;
  std::uint32_t max_message_bytes;
  std::uint32_t bad_pkeys;
  std::uint32_t qkey_violations;
  std::uint16_t pkeys;
  std::uint16_t lid;
  std::uint16_t manager_lid;
  std::uint8_t lid_mask;
  std::uint8_t virtual_lanes;
  std::uint8_t manager_level;
  std::uint8_t subnet_timeout;
  std::uint8_t init_type;
  std::uint8_t width;
  std::uint8_t speed;
  std::uint8_t physical_state;
  std::uint8_t link_layer;
  std::uint8_t flags;
};

struct ProtectionDomain {
  Context* context;
  std::uint32_t handle;
};

struct MemoryRegion {
  Context* context;
  ProtectionDomain* domain;
  void* address;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t lkey;
  std::uint32_t rkey;
};

enum : int {
  kAccessLocalWrite = 1,
  kAccessRemoteWrite = 2,
};

enum : std::uint32_t {
  kReliableConnected = 2,  // a queue pair's type
  kStateInit = 1,
  kStateReadyToReceive = 2,
  kStateReadyToSend = 3,
};

struct Capacity {
  std::uint32_t send_requests;
  std::uint32_t receive_requests;
  std::uint32_t send_pieces;
  std::uint32_t receive_pieces;
  std::uint32_t inline_bytes;
};

struct QueuePairInit {
  void* context;
  CompletionQueue* send_completions;
  CompletionQueue* receive_completions;
  void* shared_receive_queue;
  Capacity capacity;
  std::uint32_t type;
  int signal_all;
};

struct GlobalRoute {
  Gid destination;
  std::uint32_t flow_label;
  std::uint8_t source_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
};

struct AddressVector {
  GlobalRoute global;
  std::uint16_t destination_lid;
  std::uint8_t service_level;
  std::uint8_t source_path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port;
};

struct QueuePairAttributes {
  std::uint32_t state;
  std::uint32_t current_state;
  std::uint32_t path_mtu;
  std::uint32_t migration_state;
  std::uint32_t qkey;
  std::uint32_t receive_psn;
  std::uint32_t send_psn;
  std::uint32_t destination;
  std::uint32_t access;
  Capacity capacity;
  AddressVector path;
  AddressVector other_path;
  std::uint16_t pkey_index;
  std::uint16_t other_pkey_index;
  std::uint8_t notify_drained;
  std::uint8_t draining;
  std::uint8_t reads_issued;
  std::uint8_t reads_served;
  std::uint8_t not_ready_timer;
  std::uint8_t port;
  std::uint8_t timeout;
  std::uint8_t retries;
  std::uint8_t not_ready_retries;
  std::uint8_t other_port;
  std::uint8_t other_timeout;
  std::uint32_t rate_limit;
};

// Which of them a call to modify_qp sets.
enum : int {
  kSetState = 1 << 0,
  kSetAccess = 1 << 3,
  kSetPkeyIndex = 1 << 4,
  kSetPort = 1 << 5,
  kSetPath = 1 << 7,
  kSetPathMtu = 1 << 8,
  kSetTimeout = 1 << 9,
  kSetRetries = 1 << 10,
  kSetNotReadyRetries = 1 << 11,
  kSetReceivePsn = 1 << 12,
  kSetReadsIssued = 1 << 13,
  kSetNotReadyTimer = 1 << 15,
  kSetSendPsn = 1 << 16,
  kSetReadsServed = 1 << 17,
  kSetDestination = 1 << 20,
};

struct Piece {
  std::uint64_t address;
  std::uint32_t length;
  std::uint32_t lkey;
};

enum : std::uint32_t {
  kRdmaWrite = 0,  // an opcode
  kSignalled = 1 << 1,
  kInline = 1 << 3,
};

struct SendRequest {
  std::uint64_t id;
  SendRequest* next;
  Piece* pieces;
  int piece_count;
  std::uint32_t opcode;
  std::uint32_t flags;
  std::uint32_t immediate;
  std::uint64_t remote_address;
  std::uint32_t rkey;
  std::uint32_t unused[19];  // what other opcodes need
};

// How a request has ended; there are more.
enum : std::uint32_t {
  kSuccess = 0,
  kLocalLength = 1,
  kLocalOperation = 2,
  kLocalProtection = 4,
  kFlushed = 5,
  kRemoteInvalid = 9,
  kRemoteAccess = 10,
  kRetryExceeded = 12,
};

struct Completion {
  std::uint64_t id;
  std::uint32_t status;
  std::uint32_t opcode;
  std::uint32_t vendor_error;
  std::uint32_t bytes;
  std::uint32_t immediate;
  std::uint32_t queue_pair;
  std::uint32_t source;
  std::uint32_t flags;
  std::uint16_t pkey_index;
  std::uint16_t source_lid;
  std::uint8_t service_level;
  std::uint8_t path_bits;
};

// What the library's headers define as inline functions are calls through this table of the device's driver.
struct ContextCalls {
  void* before_poll[11];
  int (*poll)(CompletionQueue*, int most, Completion*);
  void* before_post[13];
  int (*post)(QueuePair*, SendRequest*, SendRequest** bad);
  void* after_post[6];
};

struct Context {
  Device* device;
  ContextCalls calls;
  int command_descriptor;
  int event_descriptor;
  int vectors;
  pthread_mutex_t mutex;
  void* compatibility;
};

struct CompletionQueue {
  Context* context;
  void* channel;
  void* own;
  std::uint32_t handle;
  int entries;
};

struct QueuePair {
  Context* context;
  void* own;
  ProtectionDomain* domain;
  CompletionQueue* send_completions;
  CompletionQueue* receive_completions;
  void* shared_receive_queue;
  std::uint32_t handle;
  std::uint32_t number;
  std::uint32_t state;
  std::uint32_t type;
};

}  // namespace lamina::fhbn::rdma::abi
