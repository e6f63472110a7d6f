// A connection to inferwire, and what its errors say.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";

import type { ProtoGrpcType } from "../generated/inference.js";
import type { InferenceServiceClient } from "../generated/inferwire/v1/InferenceService.js";

const CLIENTS = new URL("../../../", import.meta.url);
const PROTO = fileURLToPath(new URL("../proto", CLIENTS));

// `package.json` gives the generator of types the same options: types and values must agree.
const OPTIONS: loader.Options = {
  keepCase: true, // names as in the contract: max_output_tokens
  longs: String, // seconds of a Duration are 64 bits wide
  enums: String, // FINISH_REASON_STOP instead of 1
  defaults: true, // an offset of 0 is there; what is optional and unset is not
  oneofs: true, // `event.event` says which event it is
  includeDirs: [PROTO],
};

const contract = loader.loadSync("inferwire/v1/inference.proto", OPTIONS);
const details = loader.loadSync(["google/rpc/status.proto", "google/rpc/error_details.proto"], OPTIONS);

/** Channel options with retries before the first message and a balancer that reads the servers' load reports. */
export function connect(target: string): InferenceServiceClient {
  const { inferwire } = grpc.loadPackageDefinition(contract) as unknown as ProtoGrpcType;
  return new inferwire.v1.InferenceService(target, grpc.credentials.createInsecure(), {
    "grpc.service_config": readFileSync(new URL("service_config.json", CLIENTS), "utf8"),
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 2_000,
    "grpc.max_receive_message_length": 16 * 1024 * 1024,
  });
}

/** What the service says beside the status code. */
export interface Reason {
  /** As in ErrorReason, without its prefix; empty when the service did not make the error. */
  reason: string;
  /** Whether an engine had begun: if not, the call may be repeated. */
  started: boolean;
  /** Milliseconds after which a retry is useful; undefined when none is. */
  retryAfterMs: number | undefined;
}

/** Reads the details of an error that a call ended with. */
export function reasonOf(error: grpc.ServiceError): Reason {
  const found: Reason = { reason: "", started: false, retryAfterMs: undefined };
  const [pushback] = error.metadata.get("grpc-retry-pushback-ms");
  if (pushback !== undefined) found.retryAfterMs = Number(pushback);
  const [encoded] = error.metadata.get("grpc-status-details-bin");
  if (!(encoded instanceof Buffer)) return found;
  const status = message<{ details: { type_url: string; value: Buffer }[] }>("google.rpc.Status").deserialize(encoded);
  for (const { type_url, value } of status.details) {
    if (!type_url.endsWith("/google.rpc.ErrorInfo")) continue;
    const info = message<{ reason: string; metadata: Record<string, string> }>("google.rpc.ErrorInfo").deserialize(value);
    found.reason = info.reason;
    found.started = info.metadata["started"] === "true";
  }
  return found;
}

function message<T>(name: string): loader.MessageTypeDefinition<T, T> {
  return details[name] as unknown as loader.MessageTypeDefinition<T, T>;
}
