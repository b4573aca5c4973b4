"""Formats of secrets that must go from a text, and texts that look like secrets and must stay.

No value is or was a key of anybody: each is made here from the hash of its own name, when the tests run.
"""

import base64
import hashlib
import string
from dataclasses import dataclass

LOWER_HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
LOWER = string.ascii_lowercase + string.digits
ALNUM = string.ascii_letters + string.digits
BASE64 = ALNUM + "+/"
URL_SAFE = ALNUM + "_-"


def made(name: str, count: int, alphabet: str = ALNUM) -> str:
    """Return characters that depend on a name only; the first eight hold letters and digits."""
    digest = hashlib.shake_256(name.encode()).digest(count)
    letters = [char for char in alphabet if char.isalpha()]
    digits = [char for char in alphabet if char.isdigit()]
    head = [(letters, digits)[at % 2] for at in range(8)]
    return "".join((source := head[at] if at < 8 else alphabet)[byte % len(source)] for at, byte in enumerate(digest))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def armored(kind: str, body: str, line_break: str = "\n") -> str:
    """Return a block as PEM and OpenPGP write it, with another mark in place of its content."""
    dashes = "-" * 5
    return f"{dashes}BEGIN {kind}{dashes}{body}{dashes}END {kind}{dashes}".replace("\n", line_break)


def lines_of(name: str, count: int = 3, line_break: str = "\n") -> str:
    body = line_break.join(made(f"{name} {at}", 64, BASE64) for at in range(count))
    return f"{line_break}{body}{line_break}"


@dataclass(frozen=True, slots=True)
class SecretFormat:
    """One way in which a secret stands in a text."""

    name: str
    text: str
    """The text around it; `§` is where it stands."""
    secret: str
    kept: str = ""
    """The beginning that names its kind, and stays."""

    @property
    def shown(self) -> str:
        return self.text.replace("§", self.kept + self.secret)

    @property
    def redacted(self) -> str:
        return self.text.replace("§", f"{self.kept}[redacted]")


def prefixed(name: str, kept: str, count: int, alphabet: str = ALNUM, text: str = "use § for this") -> SecretFormat:
    return SecretFormat(name, text, made(name, count, alphabet), kept)


def around(name: str, text: str, count: int = 24, alphabet: str = ALNUM) -> SecretFormat:
    return SecretFormat(name, text, made(name, count, alphabet))


PREFIXED = [
    prefixed("OpenAI", "sk-", 48),
    prefixed("OpenAI project", "sk-", 100, URL_SAFE),
    SecretFormat("Anthropic", "key=§", f"ant-api03-{made('anthropic', 93, URL_SAFE)}AA", "sk-"),
    prefixed("GitHub personal", "ghp_", 36),
    prefixed("GitHub OAuth", "gho_", 36),
    prefixed("GitHub server", "ghs_", 36),
    prefixed("GitHub refresh", "ghr_", 70),
    prefixed("GitHub fine-grained", "github_pat_", 82, ALNUM),
    prefixed("GitLab personal", "glpat-", 20, URL_SAFE),
    prefixed("GitLab deploy", "gldt-", 20, URL_SAFE),
    prefixed("GitLab runner", "glrt-", 20, URL_SAFE),
    prefixed("GitLab trigger", "glptt-", 40, LOWER_HEX),
    prefixed("Slack bot", "xoxb-", 50, ALNUM),
    prefixed("Slack user", "xoxp-", 60, ALNUM),
    prefixed("Slack app", "xapp-", 60, ALNUM),
    prefixed("Google API", "AIza", 35, URL_SAFE),
    prefixed("Google OAuth access", "ya29.", 100, URL_SAFE),
    prefixed("Google OAuth secret", "GOCSPX-", 28, URL_SAFE),
    prefixed("Google OAuth refresh", "1//0", 60, URL_SAFE),
    prefixed("AWS access", "AKIA", 16, UPPER),
    prefixed("AWS temporary", "ASIA", 16, UPPER),
    prefixed("Stripe live", "sk_live_", 24),
    prefixed("Stripe restricted", "rk_live_", 24),
    prefixed("Stripe webhook", "whsec_", 32),
    prefixed("Shopify", "shpat_", 32, LOWER_HEX),
    prefixed("Shopify shared", "shpss_", 32, LOWER_HEX),
    SecretFormat("SendGrid", "mail with §!", f"{made('s1', 22, URL_SAFE)}.{made('s2', 43, URL_SAFE)}", "SG."),
    prefixed("Hugging Face", "hf_", 34),
    prefixed("npm", "npm_", 36),
    prefixed("PyPI", "pypi-", 150, URL_SAFE),
    prefixed("RubyGems", "rubygems_", 48, LOWER_HEX),
    prefixed("NuGet", "oy2", 43, LOWER),
    prefixed("DigitalOcean", "dop_v1_", 64, LOWER_HEX),
    prefixed("Docker Hub", "dckr_pat_", 27, URL_SAFE),
    prefixed("Vault service", "hvs.", 90, URL_SAFE),
    prefixed("Vault batch", "hvb.", 120, URL_SAFE),
    prefixed("Databricks", "dapi", 32, LOWER_HEX),
    prefixed("Doppler", "dp.pt.", 43),
    prefixed("Linear", "lin_api_", 40),
    prefixed("Postman", "PMAK-", 59, LOWER_HEX),
    prefixed("Sentry", "sntrys_", 100, ALNUM),
    prefixed("Netlify", "nfp_", 36),
    prefixed("Pulumi", "pul-", 40, LOWER_HEX),
    prefixed("Atlassian", "ATATT3", 180, URL_SAFE),
    prefixed("Bitbucket", "ATBB", 32),
    prefixed("age", "AGE-SECRET-KEY-1", 58, UPPER),
    prefixed("Figma", "figd_", 40, URL_SAFE),
    prefixed("Notion", "ntn_", 46),
    prefixed("Mailgun", "key-", 32, LOWER_HEX),
    SecretFormat("Mailchimp", "list § here", f"{made('mailchimp', 32, LOWER_HEX)}-us12"),
    prefixed("Twilio", "SK", 32, LOWER_HEX),
    prefixed("Replicate", "r8_", 37),
    prefixed("Groq", "gsk_", 52),
    prefixed("xAI", "xai-", 80),
    prefixed("Perplexity", "pplx-", 48),
    prefixed("NVIDIA", "nvapi-", 64, URL_SAFE),
    prefixed("Grafana service account", "glsa_", 41),
    prefixed("New Relic", "NRAK-", 27, UPPER),
    prefixed("Tailscale", "tskey-", 40),
    prefixed("PlanetScale", "pscale_tkn_", 43, URL_SAFE),
    prefixed("Supabase", "sbp_", 40, LOWER_HEX),
    prefixed("CircleCI", "CCIPAT_", 60),
    prefixed("Buildkite", "bkua_", 40, LOWER_HEX),
    prefixed("Dynatrace", "dt0c01.", 88, UPPER),
    prefixed("Square", "sq0csp-", 43, URL_SAFE),
    prefixed("EasyPost", "EZAK", 54),
    prefixed("Artifactory", "AKCp", 69),
    prefixed("Alibaba", "LTAI", 20),
    prefixed("LangSmith", "lsv2_pt_", 43, ALNUM),
    prefixed("Facebook", "EAA", 120),
    SecretFormat("Telegram", "bot §.", f"AA{made('telegram', 33, URL_SAFE)}", "123456789:"),
    SecretFormat("Discord bot", "bot § runs", f"M{made('d1', 23)}.{made('d2', 6)}.{made('d3', 38, URL_SAFE)}"),
    SecretFormat("Azure AD", "app § here", f"{made('ad', 3)}8Q~{made('azure ad', 34, URL_SAFE)}"),
    SecretFormat(
        "1Password",
        "account §",
        f"{made('a3', 6, UPPER)}-{made('b', 11, UPPER)}-{'-'.join([made('c', 5, UPPER)] * 3)}",
        "A3-",
    ),
    SecretFormat("JWT", "cookie §;", f"{made('j1', 20)}.eyJ{made('j2', 40)}.{made('j3', 43, URL_SAFE)}", "eyJ"),
    # Glued to a name, or after an escaped line break of JSON.
    prefixed("glued by an underscore", "ghp_", 36, text="the backup_§ file"),
    prefixed("glued to a word", "ghp_", 36, text="tokenis§"),
    prefixed("glued to a capital", "AKIA", 16, UPPER, text="accessKeyId§"),
    SecretFormat("glued OpenAI project", "OPENAI§", f"proj-{made('glued', 80, URL_SAFE)}", "sk-"),
    prefixed("glued by a hyphen", "glpat-", 20, ALNUM, text="user-§"),
    prefixed("after an escaped line break", "sk-", 48, text='{"text": "first\\n§\\tlast"}'),
]
HEADERS = [
    around("Bearer", "curl -H 'Authorization: Bearer §' https://a.example"),
    around("Bearer in prose", "sent with Bearer § as they said"),
    SecretFormat("Basic", "Authorization: Basic §", encoded("ann:correct horse")),
    SecretFormat("Basic of a proxy", "Proxy-Authorization: Basic §\nHost: a", encoded("ann:another1")),
    SecretFormat("Basic in JSON", '{"Authorization": "Basic §"}', encoded("svc:p4ssphrase")),
    around("Token", "Authorization: Token §", 40, LOWER_HEX),
    around("ApiKey", "authorization: ApiKey §", 40, BASE64),
    around("without a scheme", "Authorization: §", 32),
    around("Bot", '"Authorization": "Bot §"', 59, URL_SAFE),
    around("Okta", "Authorization: SSWS §", 42, URL_SAFE),
    around("Digest", 'Authorization: Digest username="ann", realm="a", response="§"', 32, LOWER_HEX),
    around(
        "AWS signature",
        "Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/eu/s3, SignedHeaders=host, Signature=§",
        64,
        LOWER_HEX,
    ),
    around("API key header", "X-Api-Key: §", 32, LOWER_HEX),
    around("auth token header", "X-Auth-Token: §", 32),
    around("Vault header", "X-Vault-Token: §", 24),
    around("GitLab header", 'curl --header "PRIVATE-TOKEN: §" https://gitlab.example', 20),
    around("Azure function header", "x-functions-key: §", 52, BASE64),
    around("Azure gateway header", "Ocp-Apim-Subscription-Key: §", 32, LOWER_HEX),
    SecretFormat("cookies", "Cookie: §\nAccept: text/html", f"sid={made('sid', 26)}; theme=dark; uid=12"),
    around("a cookie that is set", "Set-Cookie: session=§; Path=/; HttpOnly", 40),
    SecretFormat(
        "cookies of curl",
        "curl -b '§' https://a.example",
        f"sessionid={made('c', 32, LOWER)}; csrftoken={made('d', 32)}",
    ),
    around("Java session", "GET /a;jsessionid=§ HTTP/1.1", 32, UPPER),
    around("PHP session", "PHPSESSID=§", 26, LOWER),
]
ASSIGNED = [
    around("environment file", "DB_PASSWORD=§", 12),
    around("exported", "export AWS_SECRET_ACCESS_KEY=§", 40, BASE64),
    around("JSON", '{"client_secret": "§", "user": "ann"}'),
    around("JSON in JSON", '{\\"api_key\\": \\"§\\"}'),
    around("YAML", "database:\n  password: §\n  user: ann", 10),
    around("TOML", 'secret_key = "§"', 50),
    around("XML", "<password>§</password>", 12),
    around("Ruby", ":access_token => '§',", 40),
    around("Go", 'apiKey := "§"', 32),
    around("camel case", 'const dbPassword = "§";', 14),
    around("annotated Python", 'api_key: str = "§"', 32),
    around("with a suffix", "API_KEY_PROD=§", 32),
    around("numbered", "ACCESS_TOKEN_2=§", 32),
    around("a key of an application", "STRIPE_WEBHOOK_KEY=§", 32),
    SecretFormat("Laravel", "APP_KEY=base64:§", made("laravel", 43, BASE64) + "="),
    around("Rails", "secret_key_base: §", 128, LOWER_HEX),
    around("Django", "SECRET_KEY = '§'", 50, LOWER + "!@$%^&*-_=+"),
    around("Heroku", "HEROKU_API_KEY=§", 36, LOWER_HEX + "-"),
    SecretFormat(
        "Azure storage",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=§;EndpointSuffix=core.windows.net",
        made("account", 86, BASE64) + "==",
    ),
    SecretFormat(
        "Azure service bus",
        "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=§",
        made("bus", 43, BASE64) + "=",
    ),
    SecretFormat(
        "Azure SAS", "https://a.blob.core.windows.net/c?sv=2024-11-04&sp=r&sig=§&se=2026-01-01", made("sas", 43) + "%3D"
    ),
    around(
        "signed by Amazon",
        "https://a.s3.amazonaws.com/k?X-Amz-Date=20260101&X-Amz-Signature=§&x-id=GetObject",
        64,
        LOWER_HEX,
    ),
    around("signed by Google", "https://storage.googleapis.com/b/k?X-Goog-Signature=§", 128, LOWER_HEX),
    around("token in a query", "https://api.example.org/v1?access_token=§&page=2", 40),
    around("SQL Server", "Server=db;Database=a;User Id=sa;Password=§;Encrypt=true", 12),
    around("JDBC", "jdbc:mysql://db:3306/a?user=ann&password=§&useSSL=true", 12),
    around("libpq", "psql 'host=db user=ann password=§ dbname=a'", 12),
    around("npm registry", "//registry.npmjs.org/:_authToken=§", 36),
    SecretFormat("npm basic", "//npm.example/:_auth=§", encoded("ann:letmein11")),
    SecretFormat("Docker", '{"auths": {"ghcr.io": {"auth": "§"}}}', encoded("ann:dock3rpass")),
    around("Docker identity", '"identitytoken": "§"', 64),
    SecretFormat("Kubernetes user", "    client-key-data: §", encoded(armored("EC PRIVATE KEY", lines_of("k8s")))),
    around("Kubernetes token", "users:\n- name: a\n  user:\n    token: §", 60),
    SecretFormat("Kubernetes secret", "kind: Secret\ndata:\n  password: §", encoded("hunter2x")),
    around("Kubernetes variable", "- name: DB_PASSWORD\n  value: §", 12),
    around("Terraform", 'db_password = "§"', 16),
    around("Ansible", "ansible_become_pass: §", 12),
    around("PostgreSQL variable", "PGPASSWORD=§ psql -h db", 12),
    around("MySQL variable", "MYSQL_PWD=§ mysqldump a", 12),
    around("MySQL user", "CREATE USER ann IDENTIFIED BY '§';", 12),
    around("PostgreSQL user", "ALTER ROLE ann WITH PASSWORD '§';", 12),
    around("LDAP", "bindpw §", 12),
    around("Redis", "requirepass §", 24),
    SecretFormat("WireGuard", "PrivateKey = §", made("wg", 43, BASE64) + "="),
    SecretFormat("with signs", 'password = "§"', "correct-" + "horse!?"),
    around("in prose", "the password is §, I think", 10),
    around("in German", "Das Kennwort lautet §.", 10),
    around("a key in prose", "my API key is §.", 32),
    around("of bytes", 'password = b"§"', 12),
    around("in a call", 'user.setPassword("§")', 12),
    around("in a request", "requests.get(url, auth=('ann', '§'))", 12),
    around("in an image", "ENV API_TOKEN §", 30),
    around("of a command that sets", "aws configure set aws_secret_access_key §", 40, BASE64),
    around("in short", "user: ann\npw: §", 10),
    around("in Chinese", "密码：§", 10),
    around("in Chinese prose", "密码是 §，谢谢", 10),
    SecretFormat("digits", "password: §", "4711" + "0815"),
]
COMMANDS = [
    SecretFormat("curl", "curl -u ann:§ https://a.example", made("curl", 12)),
    SecretFormat("curl, long", "curl --user 'ann:§' https://a.example", made("curl2", 12)),
    around("a flag", "tool --password § run", 12),
    around("a flag with a sign", "tool --password=§ run", 12),
    around("a flag for a token", "gh auth --token § --now", 30),
    around("a flag for a key", "tool --api-key § --now", 30),
    around("a flag for a secret", "tool --client-secret='§'", 30),
    around("wget", "wget --http-password=§ https://a.example", 10),
    around("mysql", "mysql -u root -p§ a", 10),
    around("sshpass", "sshpass -p § ssh ann@host", 10),
    around("docker login", "docker login -u ann -p § ghcr.io", 20),
    around("redis-cli", "redis-cli -h db -a § ping", 20),
    around("openssl", "openssl rsa -in k.pem -passin pass:§", 12),
    around("kubectl", "kubectl create secret generic a --from-literal=password=§", 12),
    around("netrc", "machine api.example login ann password §", 12),
    around("netrc on lines", "machine api.example\n  login ann\n  password §\n", 12),
    around("pgpass", "db.example:5432:shop:ann:§", 12),
    around("htpasswd", "ann:$apr1$§", 30, ALNUM + "./"),
    around("shadow", "root:$6$§:19000:0:99999:7:::", 90, ALNUM + "./"),
    around("bcrypt", "hash $2b$12$§", 53, ALNUM + "./"),
]
ADDRESSES = [
    around("in an address", "postgresql://me:§@host/db", 8),
    SecretFormat("with an at sign", "postgresql://me:§@host/db", "p@ss" + "w0rd"),
    SecretFormat("with a slash", "mysql://me:§@db.example:3306/shop", "p/ss" + "w0rd"),
    SecretFormat("with both", "amqp://me:§@mq", "a@b/" + "c@9"),
    SecretFormat("with a number sign", "redis://:§@cache:6379/0", "x#y" + "12"),
    around("without a user", "redis://:§@cache:6379/0", 16),
    around("of git", "https://oauth2:§@git.example/a.git", 20),
    around("as the user", "https://§@o1.ingest.example/42", 32, LOWER_HEX),
    SecretFormat(
        "Slack webhook",
        "https://hooks.slack.com/services/§",
        f"T{made('t', 8, UPPER)}/B{made('b', 8, UPPER)}/{made('w', 24)}",
    ),
    SecretFormat(
        "Discord webhook", "https://discord.com/api/webhooks/§", f"{'12345678' * 2}/{made('dw', 68, URL_SAFE)}"
    ),
    SecretFormat(
        "Teams webhook",
        "https://a.webhook.office.com/webhookb2/§",
        f"{made('tw', 32, LOWER_HEX)}/IncomingWebhook/{made('tx', 32, LOWER_HEX)}",
    ),
    SecretFormat("Zapier webhook", "https://hooks.zapier.com/hooks/catch/§ on save", "1234567/" + made("z", 7, LOWER)),
]
BLOCKS = [
    SecretFormat("RSA", armored("RSA PRIVATE KEY", "§"), lines_of("rsa")),
    SecretFormat("PKCS 8", armored("PRIVATE KEY", "§"), lines_of("pkcs8")),
    SecretFormat("EC", armored("EC PRIVATE KEY", "§"), lines_of("ec", 2)),
    SecretFormat("OpenSSH", armored("OPENSSH PRIVATE KEY", "§"), lines_of("openssh", 6)),
    SecretFormat("encrypted", armored("ENCRYPTED PRIVATE KEY", "§"), lines_of("encrypted")),
    SecretFormat(
        "PGP", armored("PGP PRIVATE KEY BLOCK", "§"), f"\nVersion: GnuPG v2\nComment: a (b)\n{lines_of('pgp')}=aB3d\n"
    ),
    SecretFormat("in JSON", armored("RSA PRIVATE KEY", "§", "\\n"), lines_of("json", 3, "\\n")),
    SecretFormat("PuTTY", "Private-Lines: 2\n§\nPrivate-MAC: 1", lines_of("putty", 2).strip()),
    SecretFormat("encoded", "tls.key: §", encoded(armored("RSA PRIVATE KEY", lines_of("tls")))),
    SecretFormat("JWK", '{"kty": "EC", "crv": "P-256", "d": "§"}', made("jwk", 43, URL_SAFE)),
]
SECRET_FORMATS = [*PREFIXED, *HEADERS, *ASSIGNED, *COMMANDS, *ADDRESSES, *BLOCKS]

COMMIT = made("commit", 40, LOWER_HEX)
SHA256 = made("sha", 64, LOWER_HEX)
LOOK_ALIKES = {
    "a commit": f"fixed by {COMMIT}",
    "a log of git": f"commit {COMMIT}\nAuthor: Ann <ann@example.org>",
    "a short commit": "see 3f2a9c1 and 0d4e5f6a",
    "a UUID": "id 550e8400-e29b-41d4-a716-446655440000",
    "a request id": '{"request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}',
    "a tool call id": '{"id": "call_9pXk2LmN4qRsTuVw", "name": "read"}',
    "an image": f"data:image/png;base64,iVBORw0KGgo{made('png', 3000, BASE64)}",
    "a font": f"url(data:font/woff2;base64,d09GMg{made('woff', 3000, BASE64)}=)",
    "npm integrity": f'"integrity": "sha512-{made("npm", 86, BASE64)}=="',
    "a lock file of pip": f"    --hash=sha256:{SHA256}",
    "a lock file of Go": f"golang.org/x/sys v0.1.0 h1:{made('go', 43, BASE64)}=",
    "a lock file of Cargo": f'checksum = "{SHA256}"',
    "an image of Docker": f"postgres@sha256:{SHA256}",
    "a fingerprint": f"SHA256:{made('ssh', 43, BASE64)} ann@host (ED25519)",
    "a public SSH key": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{made('pub', 43, BASE64)} ann@host",
    "a certificate": armored("CERTIFICATE", lines_of("cert")),
    "a public key": armored("PUBLIC KEY", lines_of("public")),
    "a public PGP key": armored("PGP PUBLIC KEY BLOCK", f"\n{lines_of('pgp public')}=aB3d\n"),
    "a beginning only": "-----BEGIN PRIVATE " + "KEY----- is how such a file begins.",
    "a content security policy": f"script-src 'sha256-{made('csp', 43, BASE64)}='",
    "minified code": "!function(e,t){var n=e.token,r=t.key1;n=r||a2.secret;return{auth:n,token:b1}}(this,x9);",
    "minified classes": ".sk-fading-circle .sk-circle12:before{-webkit-animation-delay:-.1s}.sk-cube-grid .sk-cube9{}",
    "classes of scikit-learn": '<div class="sk-toggleable__content sk-estimator-id-12 sk-container-id-1">',
    "words with sk": "ask-me-anything2, a risk-averse desk-based task-0123456789abcdef",
    "a kiss": "xoxo-gossip-girl-season-2",
    "capitals": "the ASIAPACIFICREGIONAL1 OFFICE and AKIAS",
    "a name for Hugging Face": "hf_compaction_worktree_of_the_longest_name and npm_config_cache",
    "a long name in code": "npm_lifecycle_script_of_the_package_manager_2",
    "a placeholder": "api_key = YOUR_API_KEY_1",
    "a placeholder in brackets": "Authorization: Bearer <YOUR_TOKEN_2>",
    "a placeholder in small letters": 'api_key="your-api-key-123"',
    "a placeholder of crosses": "OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxx",
    "a placeholder of stars": "password: ********",
    "a placeholder of dots": "export GITHUB_TOKEN=ghp_...",
    "a variable of a shell": 'curl -u $USER1:$PASSWORD1 -H "Authorization: Bearer $TOKEN_2" https://a.example',
    "a variable in braces": "password: ${DB_PASSWORD_1}",
    "a variable of GitHub": "token: ${{ secrets.GITHUB_TOKEN_2 }}",
    "a variable in a template": 'password: "{{ vault_db_password_1 }}"',
    "a variable in an address": "https://x-access-token:${TOKEN_1}@github.com/a/b",
    "a call": "token = get_token(v2)",
    "an attribute": "token = settings.token2",
    "an environment variable": "secret=os.environ['A1']",
    "a name for a name": "login(user=user1, password=password1, token=token_2)",
    "a type": "password: str = Field(min_length=8)",
    "a type of SQL": "password VARCHAR(255) NOT NULL, token CHAR64",
    "a type of Rust": "secret: u64, token: Vec<u8>, password: String",
    "a type of TypeScript": "token?: string; password: string | null; apiKey: Base64String",
    "a method": "the password is sha256-hashed and base64 encoded",
    "an algorithm": "private_key: ed25519, token: oauth2, secret: hs256",
    "counts": "max_tokens=4096, token_count: 12345abc, prompt_tokens: 17k",
    "a tokenizer": "tokenizer=cl100k_base, token_encoding=o200k_base",
    "a question": "What is your password? The secret: never tell.",
    "a flag without a value": "docker login --password-stdin; tool --token-file /run/t1 --password",
    "a flag with a word": "usage: tool [--password PASSWORD] [--token TOKEN] [--api-key KEY]",
    "a path": "private_key = /etc/ssl/private/server1.pem",
    "the working folder": "PWD=/home/ann/project2 OLDPWD=/tmp/a1",
    "a secret of Kubernetes": "secretName: db-credentials-v2, secret: app-tls-2",
    "a secret by its name": "secret: projects/p1/secrets/s1/versions/2",
    "a secret by its address": "password: op://vault1/item2/password",
    "an ARN": "secret: arn:aws:secretsmanager:eu-west-1:123456789012:secret:a1",
    "a policy of Amazon": '"Resource": ["arn:aws:secretsmanager:*:*:secret:rds-us-east-1!*", "arn:aws:glue:*:*:c/s3x"]',
    "keys of a keyboard": "access_key: ctrl+s1, key-value-0123",
    "a path of a key": "private key: ~/.ssh/id_rsa2",
    "an example of a cookie": "Cookie: name=value; other=value",
    "code about tokens": "token = next(tokens1); assert token == 'abc123def'; self.token1 = token1",
    "tokens of a vocabulary": "bos_token='<s>', pad_token=\"[PAD]\", eos_token: <|endoftext|>, unk_token_id=50256",
    "a call with a text": "splitpasswd('user+1:a+b'), _encode_auth('name%3Aword1'), get_token('v2-abc123')",
    "durations": "token: 1h30m, tokens=12k",
    "options of commands": "docker run -p 8080:80 -u 1000:1000 a1; chown -R user1:group1 .",
    "a hash of a page": 'ETag: "33a64df551425fcc55e4d42a148795d9f25f89d4"',
    "a color": 'Token: "#ddd0c0", secret: "#1e2f3a"',
    "a public token": '<assemblyIdentity version="1" publicKeyToken="1fc8b3b9a1e18e3b">',
    "an example of an address": "postgresql://user:pass@localhost/db, https://USER:PASSWORD@host/a",
    "a class in code": "private_key: PKCS7PrivateKeyTypes, privateKey: ed25519Seed, token: 'v1-stable'",
    "a call for a header": "authorization = base64.decodebytes(authorization)",
    "prose about names": "a library identified by 'name' and a role with password 'none'",
    "an example of a webhook": "https://hooks.slack.com/services/your/slack/webhook/url",
    "a port": "see https://example.org:8080/a@2 and http://localhost:3000/@scope/pkg@1.2.3",
    "an address without a password": "git clone https://github.com/ann/a1.git ssh://git@host:22/a",
    "a mail": "mailto:ann@example.org, https://medium.com/@ann/post-1a2b3c4d5e6f",
    "an address in a list": "https://example.org:443, ann@example.org",
    "an address of Slack": "https://hooks.slack.com/services and https://app.slack.com/client/T0ABCDEF1/C0ABCDEF2",
    "a query": "https://example.org/search?q=token&page=2&sort=key1",
    "a MAC address": "00:1A:2B:3C:4D:5E up, fe80::21a:2bff:fe3c:4d5e/64",
    "an ISBN": "ISBN 978-3-16-148410-0, DOI 10.1000/182",
    "an IBAN": "IBAN DE89 3704 0044 0532 0130 00",
    "versions": "python 3.11.9, v2.0.0-rc1+build.5, node-v20.11.1-linux-x64",
    "a date": "2026-11-16T08:15:07.123456Z",
    "coordinates": "52.520008, 13.404954",
    "prose about bearers": "It uses Bearer authentication/authorization. OAuth2 Bearer tokens/credentials expire.",
    "prose about basics": "Basic authentication is simple; Basic understanding1 of Token economics2.",
    "prose about cookies": "Cookie: a small text. Cookies are set by Set-Cookie headers.",
    "prose about passwords": "The password is wrong. My password is required to be strong.",
    "prose about keys": "the primary key is id1; the API key is missing.",
    "a table": "| password | token | secret |\n|---|---|---|\n| required1 | optional2 | none |",
    "a schema": '{"password": {"type": "string", "minLength": 8}, "token": {"$ref": "#/defs/Token1"}}',
    "a translation": '{"password": "Password", "token": "form.token2.label"}',
    "a form": '<input type="password" name="password1" id="pw-2" autocomplete="current-password">',
    "a keyboard": "key=ArrowDown1, keyCode: 40, hotkey: ctrl+shift+p2",
    "a cache key": "CACHE_KEY=users_by_region_and_country_v2 PRIMARY_KEY=customer_account_number_1",
    "a public key by its name": f'PUBLIC_KEY="{made("public key", 43, BASE64)}="',
    "an option of curl": "curl -u https://a.example; sort -u file:1; mkdir -p a1/b2; cp -pr x1 y2",
    "a place in a file": "src/app.py:5432:12:E501:too-long1 and a.c:12:5:error:x1",
    "a failing test": "FAILED tests/test_auth.py::test_token[a1-b2] - assert 'pass1' == 'fail2'",
    "a frame": "<summary-12ab>password:</summary-12ab> [#3 user] secret: [#4] # Token: 5",
    "a model": "model=gpt-4o-2024-08-06, claude-sonnet-4-5-20250929",
    "a regular expression": r"token = re.compile(r'[A-Za-z0-9_]{8,}')",
    "a diff": "-    token = old_token1\n+    token = new_token2",
}
