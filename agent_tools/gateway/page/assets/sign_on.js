// Signing in at the identity provider: an authorization code with PKCE (RFC 7636), as a public client.

import { keep, kept } from "./kept.js";

const ABOUT = JSON.parse(document.body.dataset.signOn ?? "null"); // null: there is none
export const canSignIn = ABOUT !== null;

const here = () => new URL(".", document.baseURI).href;
const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
const resource = ABOUT?.resource ? { resource: ABOUT.resource } : {};

/** Leaves for the provider, which sends its user back with a code. */
export async function signIn() {
  const [verifier, state] = [random(), random()];
  keep("sign-on", { verifier, state });
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const client = { client_id: ABOUT.client, redirect_uri: here(), response_type: "code", scope: ABOUT.scope || "openid" };
  const proof = { state, code_challenge: base64url(new Uint8Array(digest)), code_challenge_method: "S256" };
  const address = new URL(ABOUT.authorization);
  for (const [name, value] of Object.entries({ ...client, ...proof, ...resource })) address.searchParams.set(name, value);
  location.assign(address);
}

/** Returns the token for the code with which the user has come back; null if that is not so. Throws what went wrong. */
export async function comeBack() {
  const query = new URL(location.href).searchParams;
  const pending = kept("sign-on");
  if (!canSignIn || !pending || !query.has("state")) return null;
  keep("sign-on", null);
  history.replaceState(null, "", location.pathname + location.hash); // a code is not for the next page that is shown
  if (query.get("state") !== pending.state || (query.get("iss") ?? ABOUT.issuer) !== ABOUT.issuer)
    throw new Error("The sign-in was begun elsewhere: sign in again.");
  if (!query.has("code")) throw new Error(query.get("error_description") ?? query.get("error") ?? "There was no code.");
  const code = { grant_type: "authorization_code", code: query.get("code"), code_verifier: pending.verifier };
  const body = new URLSearchParams({ ...code, client_id: ABOUT.client, redirect_uri: here(), ...resource });
  const answer = await fetch(ABOUT.token, { method: "POST", body });
  const { access_token: token, error_description: reason } = await answer.json();
  if (!token) throw new Error(reason ?? `The identity provider answered ${answer.status}.`);
  return token;
}
