// An identity provider for `scripts/try sign-on`: node oidc_provider.mjs PORT PAGE. Any password is right; ann and bob have groups.
import * as oidc from "oidc-provider";

const [port, page] = process.argv.slice(2);
const groups = { ann: ["few"], bob: ["many", "others"] };
const signed = { accessTokenFormat: "jwt", jwt: { sign: { alg: "RS256" } }, accessTokenTTL: 300 };
const provider = new oidc.Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "page", redirect_uris: [page], token_endpoint_auth_method: "none" }],
  clientBasedCORS: () => true,
  extraTokenClaims: (_, token) => ({ groups: groups[token.accountId] ?? [] }),
  features: {
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, resource) => ({ ...signed, audience: resource, scope: "code" }),
      useGrantedResource: () => true,
    },
  },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  scopes: ["openid", "offline_access", "code"],
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
